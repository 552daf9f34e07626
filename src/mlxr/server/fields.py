"""The fields of requests: each is implemented, known to be without effect here, or refused by its name.

A request is a pydantic model that forbids what it does not declare. A declared field is implemented, unless it is
marked as without effect. Fields that clients know and that are not served are in the model's `refused`, each with what
to do instead.
"""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mlxr.server.errors import ApiError


class _WithoutEffect:
    """Marks a field that is accepted and changes nothing."""


WithoutEffect = Annotated[Any, _WithoutEffect()]
"""The type of a field that is accepted and changes nothing."""


class ApiModel(BaseModel):
    """A request, or a part of one: nothing that it does not declare is accepted, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    refused: ClassVar[dict[str, str]] = {}
    """Fields that are known and not served, each with what to do instead."""


def classes(model: type[ApiModel]) -> dict[str, str]:
    """Each field's class: `implemented`, `without effect`, or `refused`."""
    table = {}
    for name, info in model.model_fields.items():
        marked = any(isinstance(mark, _WithoutEffect) for mark in info.metadata)
        table[info.alias or name] = "without effect" if marked else "implemented"
    return table | dict.fromkeys(model.refused, "refused")


def bad_request(error: ValidationError, refused: dict[str, str]) -> ApiError:
    """The error of a body that is not what its API asks for: the first field at fault."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = [part for part in first["loc"] if not _is_branch(part)]
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".") or "body"
    if first["type"] == "extra_forbidden":
        if name in refused:
            return ApiError(400, f"{name} is not supported: {refused[name]}", param=name, code="unsupported_field")
        return ApiError(400, f"{name} is not a field that is supported: leave it out", param=name, code="unknown_field")
    if first["type"] == "missing":
        return ApiError(400, f"{name} is missing: it is required", param=name, code="missing_field")
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{name}: {message[:1].lower()}{message[1:]}", param=name, code="invalid_value")


def _is_branch(part: object) -> bool:
    """Whether a part of an error's place names a branch of a union, and no field."""
    return isinstance(part, str) and ("[" in part or part in {"str", "int", "float", "bool", "dict", "none", "literal"})
