"""The fields of each API as docs/API.md shows them, read from the models that check requests."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from fastapi.routing import APIRoute

from mlxr.server.app import ROUTERS
from mlxr.server.fields import ApiModel, classes


def request_models() -> dict[str, type[ApiModel]]:
    """The model of each path's body."""
    models = {}
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.body_field is not None:
                kind = route.body_field.field_info.annotation
                if isinstance(kind, type) and issubclass(kind, ApiModel):
                    models[route.path] = kind
    return models


def field_table(model: type[ApiModel]) -> str:
    """A table in Markdown: what is implemented, what is without effect, and each field that is refused."""
    by_class: dict[str, list[str]] = {"implemented": [], "without effect": [], "without effect, with a warning": []}
    for name, kind in dict(_fields(model, "")).items():
        by_class[kind].append(f"`{name}`")
    rows = [f"| {kind} | {', '.join(names)} |" for kind, names in by_class.items() if names]
    rows += [f"| refused | `{name}`: {instead} |" for name, instead in model.refused.items()]
    return "\n".join(["| | fields |", "|---|---|", *rows, ""])


def _fields(model: type[ApiModel], before: str) -> Iterator[tuple[str, str]]:
    """The places of all fields, those of parts included, each with its class."""
    kinds = classes(model)
    for name, info in model.model_fields.items():
        told = info.alias or name
        yield f"{before}{told}", kinds[told]
        for part, brackets in _parts(info.annotation, ""):
            yield from _fields(part, f"{before}{told}{brackets}.")


def _parts(annotation: Any, brackets: str) -> Iterator[tuple[type[ApiModel], str]]:
    """The models that a type has in it, each with `[]` for the lists around it."""
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        yield annotation, brackets
    inner = f"{brackets}[]" if get_origin(annotation) is list else brackets
    for argument in get_args(annotation):
        yield from _parts(argument, inner)
