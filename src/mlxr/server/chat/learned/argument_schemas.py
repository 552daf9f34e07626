"""Schemas of a tool's arguments, without references."""

from collections.abc import Mapping
from typing import Any

_MOST, _MOST_DEEP = 16, 3
_NOTES = ("title", "description", "default")
DEFINITIONS = ("$defs", "definitions")


def arguments_of(parameters: Any) -> dict[str, Any]:
    """The schema of each argument of a tool, with the tool's definitions; references to these are resolved.

    Args:
        parameters: the schema of all of them, or nothing.
    """
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {key: _whole(schema, definitions_of(parameters)) for key, schema in properties.items()}


def definitions_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a schema that references name."""
    return {key: parameters[key] for key in DEFINITIONS if key in parameters}


def resolved(schema: Any, definitions: Mapping[str, Any], depth: int = _MOST_DEEP) -> Any:
    """What a schema refers to, or its only part; the schema itself if it is neither, or what is meant is not there.

    Args:
        schema: any.
        definitions: `$defs` or `definitions` of the whole schema.
        depth: to which the same is done in alternatives.
    """
    found = schema
    for _ in range(_MOST):
        if not isinstance(found, Mapping):
            return schema
        parts = found.get("allOf")
        if isinstance(found.get("$ref"), str) and not set(found) - {"$ref", *_NOTES}:
            found = _at(found["$ref"], definitions)
        elif isinstance(parts, list) and len(parts) == 1 and not set(found) - {"allOf", *_NOTES}:
            found = parts[0]
        else:
            break
    else:
        return schema
    for key in ("anyOf", "oneOf"):
        if isinstance(found.get(key), list) and depth:
            found = {**found, key: [resolved(part, definitions, depth - 1) for part in found[key]]}
    return found


def _at(reference: str, definitions: Mapping[str, Any]) -> Any:
    """What a reference means; None if it is not there."""
    place: Any = definitions if reference.startswith("#/") else None
    for name in reference.removeprefix("#/").split("/"):
        key = name.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place


def _whole(schema: Any, definitions: Mapping[str, Any]) -> Any:
    found = resolved(schema, definitions)
    return {**definitions, **found} if isinstance(found, Mapping) else found


def kinds_of(schema: Any) -> set[str]:
    """The types that values may have, as JSON schemas name them; `any` if that is not told."""
    if not isinstance(schema, Mapping):
        return {"any"}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return set().union(*map(kinds_of, schema[key]))
    if (choices := choices_of(schema)) is not None:
        return {_kind(choice) for choice in choices}
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    return set(kind) if isinstance(kind, list) else {"any"}


def may_be(value: Any, schema: Any) -> bool:
    """Whether a value has a type that a schema allows, and is one of its values if it lists them."""
    kinds, choices = kinds_of(schema), choices_of(schema)
    if choices is not None and value not in choices:
        return False
    if "any" in kinds or _kind(value) in kinds:
        return True
    return "integer" in kinds and type(value) in (int, float) and (isinstance(value, int) or value.is_integer())


def choices_of(schema: Any) -> list[Any] | None:
    """The only values of a schema, if it lists them."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    return [schema["const"]] if "const" in schema else None


def split_text(schema: Any) -> tuple[dict[str, Any] | None, Any]:
    """The part of a schema that is of strings, and the rest; None for what there is not.

    A schema that does not tell its type is of all but strings: JSON has these, too.
    """
    if not isinstance(schema, Mapping):
        return None, schema
    kinds, choices = kinds_of(schema), choices_of(schema)
    if kinds == {"string"}:
        parts = _options(schema)
        return (dict(schema) if parts is None else dict(parts[0]) if len(parts) == 1 else {"type": "string"}), None
    if "string" not in kinds:
        return None, schema
    if choices is not None:
        return {"enum": [choice for choice in choices if isinstance(choice, str)]}, {
            "enum": [choice for choice in choices if not isinstance(choice, str)]
        }
    parts = _options(schema)
    if parts is not None:
        pairs = [split_text(part) for part in parts]
        texts, others = [text for text, _ in pairs if text], [rest for _, rest in pairs if rest is not None]
        return texts[0] if len(texts) == 1 else {"type": "string"}, {"anyOf": others} if others else None
    if isinstance(schema.get("type"), list):
        rest = [kind for kind in schema["type"] if kind != "string"]
        return {**schema, "type": "string"}, {**schema, "type": rest if len(rest) > 1 else rest[0]}
    return None, schema


def part_of(schema: Any, key: str | None) -> Any:
    """The schema of an object's part by its name, or of a list's items; None if it is not told."""
    if not isinstance(schema, Mapping):
        return None
    inner = schema.get("items") if key is None else (schema.get("properties") or {}).get(key)
    return _whole(inner, definitions_of(schema)) if isinstance(inner, Mapping) else None


def _options(schema: Mapping[str, Any]) -> list[Any] | None:
    return next((schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)), None)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "number", float: "number", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "any")
