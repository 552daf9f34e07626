"""Which objects of a schema have no properties but those that it names, though it does not say so.

Most libraries write `properties` without `additionalProperties`, and mean that there are no others. The standard allows
any: a small model goes on with names of its own until its tokens end. llama.cpp has no others, either.

That is so only of what stands alone: where several schemas hold for one value (`allOf`, a `$ref` beside `properties`,
`then`), each may name properties that another does not, and of overlapping branches of `oneOf` one may hold alone only
with others.
"""

from typing import Any

from mlxr.runtime.engine.constraint.schema_negation import Scope, UnknownError, are_disjoint, pairs

_BY_NAME = ("properties", "patternProperties")
_INSIDE = ("items", "prefixItems", "additionalProperties", "additionalItems")
_JOINED = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "dependencies",
    "dependentSchemas",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
]
"""Keywords of conditions for the value that a schema is for, or for what is in it."""
_TOLD = frozenset([*_BY_NAME, *_INSIDE, "required", "minProperties", "maxProperties", "const", "enum"])
"""What says something of the properties or items of a value, which a schema that holds for it, too, may not know."""
_OPEN = frozenset(["allOf", "anyOf", "oneOf", "$ref", *_JOINED, *_TOLD]) - {"properties", "required"}


def closed_objects(root: dict[str, Any], scope: Scope) -> frozenset[int]:
    """The identities of these objects' schemas; none if the schema has references that are not known, or is too large.

    Args:
        root: a schema.
        scope: gives what its references mean.
    """
    alone: dict[int, tuple[dict[str, Any], bool]] = {}
    waiting: list[tuple[Any, bool]] = [(root, True)]
    while waiting:
        schema, is_alone = waiting.pop()
        if isinstance(schema, list):
            waiting += [(part, is_alone) for part in schema]
        if not isinstance(schema, dict) or not alone.get(id(schema), (schema, True))[1]:
            continue
        if id(schema) in alone and is_alone:
            continue
        alone[id(schema)] = schema, is_alone
        try:
            waiting += _parts(schema, scope, is_alone=is_alone)
        except UnknownError:
            return frozenset()
    return frozenset(key for key, (schema, is_alone) in alone.items() if is_alone and _names_its_own(schema))


def _names_its_own(schema: dict[str, Any]) -> bool:
    kinds, names, required = schema.get("type"), schema.get("properties"), schema.get("required", [])
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]) or not isinstance(names, dict):
        return False
    return not _OPEN & set(schema) and isinstance(required, list) and all(name in names for name in required)


def _parts(schema: dict[str, Any], scope: Scope, *, is_alone: bool) -> list[tuple[Any, bool]]:
    """The schemas in a schema, each with whether it stands alone."""
    choices = [schema[key] for key in ("anyOf", "oneOf") if key in schema]
    choices += schema["allOf"] if isinstance(schema.get("allOf"), list) else []
    if isinstance(schema.get("$ref"), str):
        choices.append(scope.resolve(schema["$ref"]))
    joined = [schema[key] for key in _JOINED if key in schema]
    is_alone = is_alone and not joined and len(choices) + bool(_TOLD & set(schema)) < 2
    if is_alone and isinstance(schema.get("oneOf"), list):
        is_alone = all(are_disjoint(a, b, scope) for a, b in pairs(schema["oneOf"]))
    inside = [part for key in _BY_NAME if isinstance(schema.get(key), dict) for part in schema[key].values()]
    inside += [schema[key] for key in _INSIDE if key in schema]
    named = [part for parts in joined if isinstance(parts, dict) for part in parts.values()]
    return [(part, is_alone) for part in inside + choices + joined + named]
