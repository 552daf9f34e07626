"""The fields of requests: each is implemented, known to be without effect here, or refused by its name.

A request is a pydantic model that forbids what it does not declare. A declared field is implemented, unless it is
marked as without effect. Fields that clients know and that are not served are in the model's `refused`, each with what
to do instead.

What would change the answer's text and cannot be done is refused. What speaks to a service that this server is not
(storage, metadata, hints for caches, tools that the service runs) passes, with a warning: `NotServed` for fields,
`note_left_out` for tools.
"""

import re
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema

from mlxr.server.errors import ApiError, quoted_json
from mlxr.server.request_record import note_warning

MOST_MESSAGES = 16_384
"""Of a conversation. What is done with each of them adds up to a time in which nobody else is answered."""


_MOST_UNKNOWN = 100
"""Fields that an object may have besides its own, and each is looked at."""


class _WithoutEffect:
    """Marks a field that is accepted and changes nothing."""


WithoutEffect = Annotated[Any, _WithoutEffect()]
"""The type of a field that is accepted and changes nothing."""


class _NotServed(_WithoutEffect):
    """Marks a field that is accepted and changes nothing, with a warning."""


NotServed = Annotated[Any, _NotServed()]
"""The type of a field for a service that this server is not: it is accepted, changes nothing, and a warning says so."""
_ASKS_NOTHING: tuple[Any, ...] = (None, False, "", "auto", "default", [], {})
"""Values of such fields that ask the service for nothing."""


def _fail_fast(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for part in schema.values():
            _fail_fast(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _fail_fast(part)


class ApiModel(BaseModel):
    """A request, or a part of one: nothing that it does not declare is accepted, and no value is converted.

    Of many errors only the first is told, so no more are collected: a million of them would take minutes.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    refused: ClassVar[dict[str, str]] = {}
    """Fields that are known and not served, each with what to do instead; in a part of a list: `tools[].name`."""

    _not_served: ClassVar[dict[str, str]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Finds the fields of which requests are warned."""
        cls._not_served = {
            name: info.alias or name
            for name, info in cls.model_fields.items()
            if any(isinstance(mark, _NotServed) for mark in info.metadata)
        }

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Has lists stop at the first item that is wrong."""
        schema = handler(source)
        _fail_fast(schema)
        return schema

    @model_validator(mode="after")
    def _warned(self) -> Self:
        for name, told in self._not_served.items():
            if getattr(self, name) not in _ASKS_NOTHING:
                note_warning(f"{told} is without effect: this server has no such service")
        return self

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: object) -> object:
        """Drops null and empty values of refused fields, which clients send where they mean to leave them out."""
        for place in cls.refused:
            value = _without_null(value, place)
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + _MOST_UNKNOWN:
            known = {info.alias or name for name, info in cls.model_fields.items()}
            unknown = next(name for name in value if name not in known)
            value = {name: part for name, part in value.items() if name in known or name == unknown}
        return value


def first_wrong(value: object) -> object:
    """Of a dict of numbers only one that is none, if there is one: only the first error is told."""
    if isinstance(value, dict):
        return next(({name: part} for name, part in value.items() if type(part) not in (int, float)), value)
    return value


TEXT_OR_LIST = Discriminator(lambda value: "str" if isinstance(value, str) else "[list]")
"""For `Annotated[str, Tag("str")] | Annotated[list[...], Tag("[list]")]`: errors tell of the branch that is meant."""
BY_TYPE = Discriminator(lambda value: f"[{type_of(value)}]")
"""For branches that are told apart by their `type`; the tag of `text` is `[text]`."""


def known_types(*types: str, instead: str, default: str = "") -> BeforeValidator:
    """Refuses a branch of another `type`, by its name.

    Args:
        types: those that are served.
        instead: what to do instead of others.
        default: the type of what names none; empty: it must.
    """

    def check(value: object) -> object:
        if not isinstance(value, dict | BaseModel):
            raise ValueError(f"expected an object with the type {' or '.join(types)}")
        if default and isinstance(value, dict) and value.get("type") is None:
            value = value | {"type": default}
        kind = type_of(value)
        if kind not in types:
            raise ValueError(
                f"type is {quoted_json(kind)}, which is not supported here, but {', '.join(types)}: {instead}"
            )
        return value

    return BeforeValidator(check)


def _without_null(value: Any, place: str) -> Any:
    """The same value without a field that is null or empty."""
    first, _, rest = place.partition(".")
    name = first.removesuffix("[]")
    if not isinstance(value, dict) or name not in value:
        return value
    part = value[name]
    if not rest:
        return value if part not in (None, "", [], {}) else {key: other for key, other in value.items() if key != name}
    if isinstance(part, list):
        return value | {name: [_without_null(item, rest) for item in part]}
    return value | {name: _without_null(part, rest)}


def type_of(value: object) -> Any:
    """The `type` of an object as JSON, or read."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def classes(model: type[ApiModel]) -> dict[str, str]:
    """Each field's class: `implemented`, `without effect`, `without effect, with a warning`, or `refused`."""
    table = {}
    for name, info in model.model_fields.items():
        marked = any(isinstance(mark, _WithoutEffect) for mark in info.metadata)
        warned = ", with a warning" if name in model._not_served else ""
        table[info.alias or name] = f"without effect{warned}" if marked else "implemented"
    return table | dict.fromkeys(model.refused, "refused")


_OF_PYTHON = re.compile(r"a valid dictionary( or object to extract fields from| or instance of \w+)?")
_IN_JSON = {"True": "true", "False": "false", "None": "null"}


def bad_request(error: ValidationError, refused: dict[str, str]) -> ApiError:
    """The error of a body that is not what its API asks for: the first field at fault."""
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    # Of the branches of a union, the one whose type is right is meant.
    first = next((e for e in errors if e["loc"][:1] == first["loc"][:1] and not e["type"].endswith("_type")), first)
    path = [part for part in first["loc"] if not _is_branch(part)]
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".") or "body"
    if first["type"] == "extra_forbidden":
        if (instead := refused.get(re.sub(r"\[\d+\]", "[]", name))) is not None:
            return ApiError(400, f"{name} is not supported: {instead}", param=name, code="unsupported_field")
        return ApiError(400, f"{name} is not a field that is supported: leave it out", param=name, code="unknown_field")
    if first["type"] == "missing":
        return ApiError(400, f"{name} is missing: it is required", param=name, code="missing_field")
    message = _OF_PYTHON.sub("an object", first["msg"].removeprefix("Value error, "))
    if first["type"] == "literal_error":  # whose message has no text of the request
        message = re.sub(r"\b(True|False|None)\b", lambda word: _IN_JSON[word[0]], message)
    return ApiError(400, f"{name}: {message[:1].lower()}{message[1:]}", param=name, code="invalid_value")


def _is_branch(part: object) -> bool:
    """Whether a part of an error's place names a branch of a union, and no field."""
    return isinstance(part, str) and ("[" in part or part in {"str", "int", "float", "bool", "dict", "none", "literal"})
