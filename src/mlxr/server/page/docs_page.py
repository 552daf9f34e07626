"""/docs: the API for people to read, made of the OpenAPI document here, without scripts and without other servers."""

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from jinja2 import Environment
from starlette.responses import Response

from mlxr.server.page.page_files import page_files
from mlxr.server.page.router import HEADERS

router = APIRouter()

_REF = "#/components/schemas/"
_LAST = "Other"
_BOUNDS = {"minimum": "at least", "maximum": "at most", "minItems": "at least", "maxItems": "at most"}


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The page; it is made once."""
    state = request.app.state
    if not hasattr(state, "docs"):
        state.docs = docs_page(request.app)
    return Response(state.docs, media_type="text/html; charset=utf-8", headers=HEADERS | {"Cache-Control": "no-cache"})


def docs_page(app: FastAPI) -> str:
    """The page's HTML.

    Args:
        app: what the page is about.
    """
    document = app.openapi()
    template = resources.files("mlxr.server.page").joinpath("static/docs.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(template).render(
        version=document["info"]["version"],
        folder=f"/page/{page_files().digest}",
        groups=_groups(document["paths"]),
        objects=[_object(name, schema) for name, schema in sorted(document["components"]["schemas"].items())],
    )
    return page.lstrip()


def _groups(paths: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls: dict[str, list[dict[str, Any]]] = {}
    for path, methods in paths.items():
        for method, operation in methods.items():
            name = operation.get("tags", [_LAST])[0]
            calls.setdefault(name, []).append(_call(path, method.upper(), operation))
    return [{"name": name, "anchor": _anchor(name), "calls": each} for name, each in calls.items()]


def _call(path: str, method: str, operation: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "method": method,
        "parameters": [
            {
                "name": each["name"],
                "required": each.get("required", False),
                "kind": list(_kind(each["schema"])),
                "about": f"in the {each['in']}. {each.get('description', '')}",
            }
            for each in operation.get("parameters", [])
        ],
        "body": list(_content(operation.get("requestBody", {}))),
        "answers": [
            {"status": status, "when": told.get("description", ""), "content": list(_content(told))}
            for status, told in operation["responses"].items()
        ],
        **_about(operation.get("description", "")),
    }


def _object(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    required = schema.get("required", [])
    fields = [
        {
            "name": field,
            "required": field in required,
            "kind": list(_kind(value)),
            "about": value.get("description", "") if isinstance(value, dict) else "",
        }
        for field, value in schema.get("properties", {}).items()
    ]
    return {
        "name": name,
        "short": _short(name),
        "fields": fields,
        "kind": list(_kind(schema)),
        **_about(schema.get("description", "")),
    }


def _about(text: str) -> dict[str, Any]:
    first, *others = [part for part in re.split(r"\n\s*\n", text.strip()) if part] or [""]
    return {"first_line": first, "texts": others}


def _content(told: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for place, (kind, content) in enumerate(told.get("content", {}).items()):
        if place:
            yield _text(", or ")
        yield from _kind(content.get("schema", {}))
        if kind != "application/json":
            yield _text(f" ({kind})")


def _kind(schema: Any) -> Iterator[dict[str, str]]:
    """What a schema allows, in words and links."""
    if not isinstance(schema, dict):
        yield _text("anything")
    elif "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        yield {"text": _short(name), "target": name}
    elif branches := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        told = [branch for branch in branches if branch != {"type": "null"}]
        for place, branch in enumerate(told):
            if place:
                yield _text(" or ")
            yield from _kind(branch)
    elif "const" in schema or "enum" in schema:
        yield _text(" or ".join(map(repr, schema.get("enum", [schema.get("const")]))))
    elif schema.get("type") == "array":
        yield _text("list of ")
        yield from _kind(schema.get("items", {}))
    else:
        bounds = [f"{words} {schema[key]}" for key, words in _BOUNDS.items() if key in schema]
        yield _text(" ".join([str(schema.get("type", "anything")), *bounds]))


def _short(name: str) -> str:
    """An object's name without that of its module, which FastAPI adds where two have the same."""
    return name.rpartition("__")[2]


def _text(text: str) -> dict[str, str]:
    return {"text": text, "target": ""}


def _anchor(text: str) -> str:
    return re.sub(r"\W+", "-", text).strip("-")
