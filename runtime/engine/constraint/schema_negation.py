"""What a JSON schema does not allow, as a schema; and whether two schemas have nothing in common.

Both are exact or not known: `negated` raises where the opposite cannot be written, `are_disjoint` says no in doubt.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from mlxr.runtime.engine.constraint.schema_patterns import no_text_of

TYPES = ("null", "boolean", "number", "string", "array", "object")
ANNOTATIONS = frozenset(
    """$anchor $comment $defs $dynamicAnchor $id $schema $vocabulary contentEncoding contentMediaType contentSchema
    default definitions deprecated description discriminator example examples externalDocs id readOnly title
    writeOnly xml x-guidance""".split()  # noqa: SIM905 (a list would be 20 lines)
)
_MOST_DEPTH = 24
_MOST_OPTIONS = 64
_BOUNDS = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
_MOST_TEXT, _LONGEST_TEXT = 5_000, 200
_MOST_STEPS = 20_000


class UnknownError(Exception):
    """An opposite cannot be written, or a reference is not found."""


class Scope:
    """Where references are found; and how much may still be done, since small schemas can be large problems."""

    def __init__(self, resolve: Callable[[str], Any]) -> None:
        """Starts with all that may be done.

        Args:
            resolve: finds the schema of a `$ref`; raises `UnknownError` if it cannot.
        """
        self.resolve = resolve
        self._steps = 0

    def step(self) -> None:
        """Counts some work; raises UnknownError if it is too much."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise UnknownError


def negated(schema: Any, scope: Scope, depth: int = 0) -> Any:
    """A schema of exactly the JSON that `schema` does not allow.

    Args:
        schema: the schema.
        scope: finds references.
        depth: of calls of itself.

    Raises:
        UnknownError: it cannot be written.
    """
    scope.step()
    if isinstance(schema, bool):
        return not schema
    if depth > _MOST_DEPTH or not isinstance(schema, dict):
        raise UnknownError
    options: list[Any] = []
    for key, value in schema.items():
        if key not in ANNOTATIONS:
            options += _violations(key, value, schema, scope, depth + 1)
    return any_of(options)


def any_of(options: list[Any]) -> Any:
    """A schema of what any of these allows."""
    options = [option for option in options if option is not False]
    if len(options) > _MOST_OPTIONS:
        raise UnknownError
    if True in [option for option in options if isinstance(option, bool)]:
        return True
    if not options:
        return False
    return options[0] if len(options) == 1 else {"anyOf": options}


def _violations(key: str, value: Any, schema: dict[str, Any], scope: Scope, depth: int) -> list[Any]:
    """Schemas of the JSON that violates one keyword."""
    if key == "type":
        return _other_types([value] if isinstance(value, str) else value)
    if key in ("const", "enum"):
        return _other_values([value] if key == "const" else value)
    if key in _BOUNDS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnknownError  # such as draft 4's exclusiveMinimum
        kind, opposite, step = _BOUNDS[key]
        bound = value + step
        return [{"type": kind, opposite: bound}] if kind == "number" or bound >= 0 else []
    if key == "required":
        return [{"type": "object", "properties": {name: False}} for name in value]
    if key == "properties":
        opposites = {name: negated(part, scope, depth) for name, part in value.items()}
        return [
            {"type": "object", "properties": {name: part}, "required": [name]}
            for name, part in opposites.items()
            if part is not False
        ]
    if key == "prefixItems":
        opposites_of_items = [negated(part, scope, depth) for part in value]
        return [
            {"type": "array", "prefixItems": [True] * place + [part], "minItems": place + 1}
            for place, part in enumerate(opposites_of_items)
            if part is not False
        ]
    if key == "not":
        return [value]
    if key == "allOf":
        return [negated(part, scope, depth) for part in value]
    if key == "anyOf" or (key == "oneOf" and all(are_disjoint(a, b, scope) for a, b in pairs(value))):
        return [{"allOf": [negated(part, scope, depth) for part in value]}]
    if key == "$ref":
        return [negated(scope.resolve(value), scope, depth)]
    if key in ("items", "additionalProperties", "patternProperties") and value in (True, {}):
        return []
    if key in KNOWN:
        raise UnknownError
    return []


KNOWN = frozenset(
    """$dynamicRef $recursiveRef additionalItems additionalProperties allOf anyOf const contains dependencies
    dependentRequired dependentSchemas else enum exclusiveMaximum exclusiveMinimum format if items maxContains maxItems
    maxLength maxProperties maximum minContains minItems minLength minProperties minimum multipleOf not oneOf pattern
    patternProperties prefixItems properties propertyNames required then type unevaluatedItems unevaluatedProperties
    uniqueItems""".split()  # noqa: SIM905 (a list would be 40 lines)
)
"""Keywords of JSON Schema that say what is valid."""


def _other_types(names: list[str]) -> list[Any]:
    if "integer" in names and "number" not in names:
        raise UnknownError
    others = [name for name in TYPES if name not in names]
    return [{"type": others}] if others else []


def _other_values(values: list[Any]) -> list[Any]:
    if any(isinstance(value, list | dict) for value in values):
        raise UnknownError
    texts = sorted({value for value in values if isinstance(value, str)})
    if sum(map(len, texts)) > _MOST_TEXT or max(map(len, texts), default=0) > _LONGEST_TEXT:
        raise UnknownError
    numbers = sorted({value for value in values if isinstance(value, int | float) and not isinstance(value, bool)})
    options: list[Any] = [{"const": truth} for truth in (True, False) if not any(value is truth for value in values)]
    options.append({"type": ["array", "object"] if None in values else ["null", "array", "object"]})
    options.append({"type": "string", "pattern": no_text_of(texts)} if texts else {"type": "string"})
    if not numbers:
        return [*options, {"type": "number"}]
    options.append({"type": "number", "exclusiveMaximum": numbers[0]})
    options += [{"type": "number", "exclusiveMinimum": a, "exclusiveMaximum": b} for a, b in pairwise(numbers)]
    return [*options, {"type": "number", "exclusiveMinimum": numbers[-1]}]


def pairs(parts: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Each two of these."""
    return ((a, b) for place, a in enumerate(parts) for b in parts[place + 1 :])


def are_disjoint(a: Any, b: Any, scope: Scope, depth: int = 0) -> bool:
    """Whether certainly nothing follows both schemas."""
    scope.step()
    if a is False or b is False:
        return True
    if depth > _MOST_DEPTH:
        return False
    parts_of_a, parts_of_b = _flat(a, scope), _flat(b, scope)
    for parts, other in ((parts_of_a, b), (parts_of_b, a)):
        for part in parts:
            for key in ("anyOf", "oneOf"):
                if part.get(key) and all(are_disjoint(option, other, scope, depth + 1) for option in part[key]):
                    return True
    types_of_a, types_of_b = _types(parts_of_a), _types(parts_of_b)
    if not types_of_a & types_of_b:
        return True
    values_of_a, values_of_b = _values(parts_of_a), _values(parts_of_b)
    if values_of_a is not None and values_of_b is not None and not values_of_a & values_of_b:
        return True
    if types_of_a & types_of_b != {"object"}:
        return False
    required = {name for part in parts_of_a + parts_of_b for name in _names(part.get("required"))}
    for name in required:
        of_a, of_b = _property(parts_of_a, name), _property(parts_of_b, name)
        if False in [part for part in of_a + of_b if isinstance(part, bool)]:
            return True
        if any(are_disjoint(one, other, scope, depth + 1) for one in of_a for other in of_b):
            return True
    return False


def _flat(schema: Any, scope: Scope, depth: int = 0) -> list[dict[str, Any]]:
    """The schemas that must all hold, as far as they are known."""
    scope.step()
    if not isinstance(schema, dict) or depth > _MOST_DEPTH:
        return []
    parts = [schema]
    for part in schema.get("allOf") or []:
        parts += _flat(part, scope, depth + 1)
    if isinstance(schema.get("$ref"), str):
        with contextlib.suppress(UnknownError):
            parts += _flat(scope.resolve(schema["$ref"]), scope, depth + 1)
    return parts


def _types(parts: list[dict[str, Any]]) -> set[str]:
    types = {*TYPES, "integer"}
    for part in parts:
        if "type" in part:
            named = {part["type"]} if isinstance(part["type"], str) else set(part["type"])
            types &= named | ({"integer"} if "number" in named else set())
        for values in [part["enum"]] if "enum" in part else [[part["const"]]] if "const" in part else []:
            types &= {name for value in values for name in _type_names(value)}
    return types


def _type_names(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if value == int(value) else {"number"}
    return {{type(None): "null", str: "string", list: "array", dict: "object"}[type(value)]}


def _values(parts: list[dict[str, Any]]) -> set[str] | None:
    """The values that are allowed, if there is a list of them, as text."""
    found: set[str] | None = None
    for part in parts:
        for values in [part["enum"]] if "enum" in part else [[part["const"]]] if "const" in part else []:
            texts = {_canonical(value) for value in values}
            found = texts if found is None else found & texts
    return found


def _canonical(value: Any) -> str:
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _names(required: Any) -> list[str]:
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _property(parts: list[dict[str, Any]], name: str) -> list[Any]:
    """The schemas of a property, as far as `properties` and a closed object tell."""
    found = [part["properties"][name] for part in parts if name in (part.get("properties") or {})]
    for part in parts:
        is_closed = part.get("additionalProperties") is False and not part.get("patternProperties")
        if is_closed and name not in (part.get("properties") or {}):
            found.append(False)
    return found
