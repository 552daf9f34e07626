"""Schemas of a tool's arguments, without references."""

from collections.abc import Mapping
from typing import Any

_MOST = 16
_NOTES = ("title", "description", "default")
DEFINITIONS = ("$defs", "definitions")


def arguments_of(parameters: Any) -> dict[str, Any]:
    """The schema of each argument of a tool, whose references to the tool's definitions are resolved.

    Args:
        parameters: the schema of all of them, or nothing.
    """
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {key: resolved(schema, definitions_of(parameters)) for key, schema in properties.items()}


def definitions_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a schema that references name."""
    return {key: parameters[key] for key in DEFINITIONS if key in parameters}


def resolved(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """What a schema refers to, or its only part; the schema itself if it is neither, or what is meant is not there.

    Args:
        schema: any.
        definitions: `$defs` or `definitions` of the whole schema.
    """
    found = schema
    for _ in range(_MOST):
        if not isinstance(found, Mapping):
            break
        parts = found.get("allOf")
        if isinstance(found.get("$ref"), str) and not set(found) - {"$ref", *_NOTES}:
            place: Any = definitions
            for name in found["$ref"].removeprefix("#/").split("/"):
                key = name.replace("~1", "/").replace("~0", "~")
                place = place.get(key) if isinstance(place, Mapping) else None
            if not found["$ref"].startswith("#/") or not isinstance(place, Mapping):
                return schema
            found = place
        elif (
            isinstance(parts, list)
            and len(parts) == 1
            and not set(found) - {"allOf", "title", "description", "default"}
        ):
            found = parts[0]
        else:
            return found
    return schema


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


def _options(schema: Mapping[str, Any]) -> list[Any] | None:
    return next((schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)), None)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "number", float: "number", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "any")
