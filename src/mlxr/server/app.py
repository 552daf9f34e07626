"""The server's app: routes, errors, and what stands before them."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import InitErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mlxr.compiler.errors import MlxrError
from mlxr.compiler.version import VERSION
from mlxr.server import about_server, adapters, infill, request_router, rerank, tokens
from mlxr.server.anthropic import messages
from mlxr.server.documents.answers import errors
from mlxr.server.errors import ApiError
from mlxr.server.fields import ApiModel, bad_request
from mlxr.server.inspector import router as inspector
from mlxr.server.inspector.watched import watched
from mlxr.server.metrics.server_metrics import ServerMetrics
from mlxr.server.ollama import OLLAMA_ROUTERS
from mlxr.server.openai import chat, completions, embeddings, models, responses
from mlxr.server.openai.kept_responses import KeptResponses
from mlxr.server.page import docs_page
from mlxr.server.page import router as page
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.pulls import Pulls
from mlxr.server.request_log import NOT_ENFORCED_HEADER, REQUEST_ID_HEADERS, WARNINGS_HEADER, RequestLog
from mlxr.server.request_spans import RequestSpans
from mlxr.server.security import Guard, Origins
from mlxr.server.settings import ServerSettings
from mlxr.server.sse import error_response, told
from mlxr.server.state import ServerState

ROUTERS: tuple[APIRouter, ...] = (
    about_server.router,
    models.router,
    chat.router,
    completions.router,
    responses.router,
    embeddings.router,
    tokens.router,
    infill.router,
    rerank.router,
    adapters.router,
    messages.router,
    *OLLAMA_ROUTERS,
    inspector.router,
    request_router.router,
    page.router,
    docs_page.router,
)
"""Every part of the API has one."""


def make_app(pool: ModelPool, settings: ServerSettings) -> FastAPI:
    """The app that serves a pool's models.

    Args:
        pool: the models; the app starts it, and closes it at its end.
        settings: limits, keys and times.

    Raises:
        RequestError: spans are wanted, and OpenTelemetry is not installed; or the file of responses cannot be used.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        pool.on_load = lambda loaded: watched(loaded.engine)
        pool.start()
        try:
            yield
        finally:
            await pulls.close()
            await pool.close()
            metrics.close()
            kept.close()
            if spans is not None:
                await asyncio.to_thread(spans.close)

    metrics, pulls = ServerMetrics(pool), Pulls(pool)
    kept = KeptResponses(settings.responses_bytes, settings.responses_file)
    spans = RequestSpans(settings.traces_endpoint) if settings.traces_endpoint else None
    app = FastAPI(title="MLXR", version=VERSION, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.server = state = ServerState(pool, settings, metrics, pulls, kept)
    for router in ROUTERS:
        paths = [route.path for route in router.routes if isinstance(route, APIRoute)]
        app.include_router(router, responses=errors(paths[-1]))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _not_there)
    for kind in (ApiError, MlxrError, Exception):
        app.add_exception_handler(kind, _failed)
    app.add_middleware(Guard, settings=settings)
    # Outside the guard, so that pages of allowed origins can read what the guard says, too.
    app.add_middleware(
        Origins,
        allow_origins=list(settings.origins),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=[*REQUEST_ID_HEADERS, NOT_ENFORCED_HEADER, WARNINGS_HEADER, "retry-after"],
    )
    app.add_middleware(
        RequestLog, counts=metrics.http_requests, keeps_text=settings.log_text, spans=spans, recent=state.recent
    )
    return app


async def _invalid(request: Request, raised: Exception) -> Response:
    assert isinstance(raised, RequestValidationError), "it is registered for these"
    errors = raised.errors()
    if errors[0]["type"] == "json_invalid":
        reason = errors[0].get("ctx", {}).get("error", "")
        return error_response(request.url.path, ApiError(400, f"the body is not JSON: {reason}", code="invalid_json"))
    if isinstance(errors[0]["input"], bytes) and errors[0]["loc"] == ("body",):
        message = "the body was not read as JSON: send it with the header Content-Type: application/json"
        return error_response(request.url.path, ApiError(400, message, code="invalid_json"))
    details = [_detail(error) for error in errors]
    error = ValidationError.from_exception_data("request", details)
    return error_response(request.url.path, bad_request(error, _refused(request)))


def _detail(error: dict[str, Any]) -> InitErrorDetails:
    """An error as pydantic made it, without the part of its place that says that it is in the body."""
    place = tuple(error["loc"])
    where = place[1:] if place[:1] in {("body",), ("query",)} else place
    return InitErrorDetails(type=_kind(error), loc=where, input=error["input"])


def _kind(error: dict[str, Any]) -> Any:
    from pydantic_core import PydanticCustomError  # noqa: PLC0415

    return PydanticCustomError(error["type"], error["msg"])


def _refused(request: Request) -> dict[str, str]:
    """The fields that the route's request refuses by their names."""
    route = request.scope.get("route")
    if isinstance(route, APIRoute) and route.body_field is not None:
        kind = route.body_field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, ApiModel):
            return kind.refused
    return {}


async def _not_there(request: Request, raised: Exception) -> Response:
    assert isinstance(raised, HTTPException), "it is registered for these"
    headers = dict(raised.headers or {})
    if raised.status_code == 404:
        error = ApiError(404, _told_missing(request), code="not_found")
    elif raised.status_code == 405:
        allowed = headers.get("Allow", "another method")
        message = f"{request.url.path} does not take {request.method}: use {allowed}"
        error = ApiError(405, message, code="method_not_allowed", headers=headers)
    elif raised.status_code == 400:  # all that starlette says is that it could not read the body
        message = "the body is not JSON: it is not UTF-8, or too deeply nested"
        error = ApiError(400, message, code="invalid_json")
    else:
        error = ApiError(raised.status_code, str(raised.detail), code="http_error")
    return error_response(request.url.path, error)


def _told_missing(request: Request) -> str:
    """Some clients want an address that ends in /v1, others one that does not: the path then lacks it, or has two."""
    path, known = request.url.path, {getattr(route, "path", None) for router in ROUTERS for route in router.routes}
    rest = re.sub(r"^(/+(v1|api)(?=/))*/*", "/", path, count=1)
    near = next((prefix + rest for prefix in ("/v1", "/api", "") if rest != "/" and prefix + rest in known), None)
    return f"there is no {path} here" + (f", but {near}: correct the client's base URL" if near else "")


async def _failed(request: Request, raised: Exception) -> Response:
    return error_response(request.url.path, told(raised))
