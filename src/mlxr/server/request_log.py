"""One line of JSON for each HTTP request, its count among the metrics, and its span. No text of users unless asked."""

import json
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxr.server.recent_requests import RecentRequests
from mlxr.server.request_record import RECORD, RequestRecord
from mlxr.server.request_spans import RequestSpans
from mlxr.server.request_times import time_fields

LOG = logging.getLogger("mlxr.server.requests")
LOG.addHandler(logging.NullHandler())  # without a log, Python itself would print warnings
_PROBES = frozenset({"/health", "/ready", "/metrics", "/status"})
"""Whoever watches the server asks these all the time."""
_POLLED = ("/inspector/", "/page/", "/requests")
"""So does the page."""
_GONE = 499
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_ID = re.compile(rb"[\w.:-]{1,128}", re.ASCII)
_MOST_PATH = 200
_MOST_HEADER = 2000
_FIRST_ERROR = 400
REQUEST_ID_HEADERS = ("x-request-id", "request-id")
"""Where clients look for the name of a request, which they tell with errors: OpenAI's, and Anthropic's."""

NOT_ENFORCED_HEADER = "x-mlxr-not-enforced"
"""Where an answer says which keywords of the request's schemas it may violate."""

WARNINGS_HEADER = "x-mlxr-warnings"
"""Where an answer says what of its request was passed over, as its field `warnings` does."""


class RequestLog:
    """Stands around everything else, so that it sees also what is refused."""

    def __init__(
        self,
        app: ASGIApp,
        counts: Counter[tuple[str, str, str]],
        keeps_text: bool,
        spans: RequestSpans | None = None,
        recent: RecentRequests | None = None,
    ) -> None:
        """Logs the requests to an app.

        Args:
            app: it.
            counts: requests by method, route and status, to which each request is added.
            keeps_text: whether bodies of requests and texts of answers are logged.
            spans: get a span of each request, but for those that are asked all the time; None: nobody wants them.
            recent: gets the requests to models; None: nobody wants them.
        """
        self._spans, self._recent = spans, recent
        self._app, self._counts, self._keeps_text = app, counts, keeps_text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and logs it when it has ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(
            scope["method"],
            scope["path"],
            request_id=_request_id(scope["headers"]),
            trace_id=_trace_id(scope["headers"]),
            keeps_text=self._keeps_text,
        )
        request_id = [(name.encode(), record.request_id.encode()) for name in REQUEST_ID_HEADERS]
        has_ended = False

        async def watch(message: Message) -> None:
            nonlocal has_ended
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *request_id, *_told(record)]}
            elif not message.get("more_body"):
                has_ended = True
            await send(message)

        async def keep() -> Message:
            message = await receive()
            record.body += message.get("body", b"")
            return message

        token = RECORD.set(record)
        try:
            await self._app(scope, keep if self._keeps_text else receive, watch)
        except BaseException:
            record.status = record.status or 500
            raise
        finally:
            RECORD.reset(token)
            record.client_gone = not has_ended or record.status == _GONE
            route, level = _route(scope), _level(record)
            self._counts[record.method, route, str(record.status)] += 1
            keeps = self._recent is not None and bool(record.model)
            fields = fields_of(record) if keeps or LOG.isEnabledFor(level) else {}
            if self._recent is not None and keeps:
                self._recent.add(record.owner, fields)
            if LOG.isEnabledFor(level):
                LOG.log(level, "%s", "request", extra={"fields": fields})
            if self._spans is not None and level > logging.DEBUG:
                self._spans.add(record, route, scope["headers"])


def _told(record: RequestRecord) -> list[tuple[bytes, bytes]]:
    """The headers that say what of the request's schemas the answer may violate, and what was passed over."""
    if record.status >= _FIRST_ERROR:
        return []
    headers = []
    for name, notes in ((NOT_ENFORCED_HEADER, record.not_enforced), (WARNINGS_HEADER, record.warnings)):
        if notes:
            text = json.dumps("; ".join(notes))[1:-1]  # no sign that a header may not have
            headers.append((name.encode(), text[:_MOST_HEADER].encode("ascii")))
    return headers


def _route(scope: Scope) -> str:
    """The pattern that the path matches: there are few of them, whatever clients ask for."""
    return getattr(scope.get("route"), "path", None) or "other"


def _request_id(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The name that the client, or a proxy before this server, has given to the request; else a new one."""
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    return given.decode() if _ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def _trace_id(headers: Sequence[tuple[bytes, bytes]]) -> str:
    parent = next((value for name, value in headers if name == b"traceparent"), b"")
    match = _TRACE.fullmatch(parent)
    return match[1].decode() if match else ""


def _level(record: RequestRecord) -> int:
    if record.status >= 500:
        return logging.ERROR
    if record.status >= 400:
        return logging.WARNING
    return logging.DEBUG if record.path in _PROBES or record.path.startswith(_POLLED) else logging.INFO


def fields_of(record: RequestRecord) -> dict[str, Any]:
    """What the line says of a request that has ended."""
    seconds = time.perf_counter() - record.begin
    fields: dict[str, Any] = {
        "method": record.method,
        "path": record.path[:_MOST_PATH],
        "status": record.status,
        "request_id": record.request_id,
        "ms": _ms(seconds),
    }
    if record.model:
        fields |= {
            "model": record.model,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "completion_tokens": record.completion_tokens,
            "first_token_ms": None if record.first_token is None else _ms(record.first_token),
            "finish_reasons": record.finish_reasons,
        } | time_fields(record, seconds)
    if record.error:
        fields["error"] = record.error
        if record.error_param:
            fields["param"] = record.error_param
        fields["message"] = record.error_message if record.keeps_text else record.error_outline
    if record.warnings:
        fields["warnings"] = record.warnings
    if record.client_gone:
        fields["client_gone"] = True
    if record.trace_id:
        fields["trace_id"] = record.trace_id
    if record.keeps_text:
        fields |= {"body": record.body.decode(errors="replace"), "answers": record.answers}
    return fields


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


class JsonLines(logging.Formatter):
    """A line of JSON for each message: when, how bad, what, and the fields that it has."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a message."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
