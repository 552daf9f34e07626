"""Routes whose large requests are read beside the loop, so that other clients' streams go on meanwhile.

A call in C keeps all threads from running until it returns, in whichever thread it is made. So a large body is read in
a thread of its own and, where it has many values, by Python code that calls C for one value at a time. Small ones are
read as ever, in the loop: a thread would take longer than they do.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mlxr.server.errors import ApiError

MOST_IN_LOOP = 10_000
"""Signs of structure in a body that the loop reads: some milliseconds."""
MOST_AT_ONCE = 100_000
"""Likewise, in a body that one call reads: 15 ms for numbers, 60 ms for the smallest objects."""
MOST_CONTAINERS = 200_000
"""Objects and lists of a body. Freeing them is one call, and so is looking for garbage among them."""


class LargeBodyRoute(APIRoute):
    """A route of JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle, field = super().get_route_handler(), self.body_field

        async def handle_any(request: Request) -> Response:
            if field is None or "json" not in request.headers.get("content-type", ""):
                return await handle(request)
            data = await request.body()
            if (signs := structure(data)) <= MOST_IN_LOOP:
                return await handle(request)
            try:
                value, errors = await asyncio.to_thread(_read, data, signs, field)
            except json.JSONDecodeError as error:
                where = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error", "input": {}}
                raise RequestValidationError([where | {"ctx": {"error": error.msg}}]) from error
            except (ValueError, RecursionError) as error:
                raise HTTPException(400) from error
            if errors:
                raise RequestValidationError(errors)
            request._json = value  # a model that is read already is only passed on
            return await handle(request)

        return handle_any


def structure(data: bytes) -> int:
    """Signs of structure in JSON, those in its texts included: there are no more values than these, and one."""
    return sum(map(data.count, (b",", b"{", b"[")))


def read_json(data: bytes, signs: int) -> Any:
    """The value of JSON. With more than `MOST_AT_ONCE` signs of structure, other threads can run meanwhile.

    Args:
        data: the JSON.
        signs: as `structure` counts them.

    Raises:
        ApiError: it has more objects and lists than a server reads.
        ValueError: it is no JSON.
        RecursionError: it is too deeply nested.
    """
    if signs <= MOST_AT_ONCE:
        return json.loads(data)
    decoder, count = json.JSONDecoder(), 0

    def counted(parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_and_count(*given: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count > MOST_CONTAINERS:
                raise ApiError(
                    413,
                    f"the body has more than {MOST_CONTAINERS} objects and lists: send less",
                    code="too_large",
                )
            return parse(*given, **more)

        return parse_and_count

    plain: Any = decoder  # the scanner takes its parsers from these attributes, which have no types
    plain.parse_object, plain.parse_array = counted(plain.parse_object), counted(plain.parse_array)
    plain.scan_once = py_make_scanner(decoder)
    return decoder.decode(data.decode(json.detect_encoding(data), "surrogatepass"))


def _read(data: bytes, signs: int, field: Any) -> tuple[Any, Any]:
    """The value of a route's body as its model, and what is wrong with it."""
    value, errors = field.validate(read_json(data, signs), {}, loc=("body",))
    return value, errors


class JsonBytes(Response):
    """An answer whose JSON is written already."""

    media_type = "application/json"


def written_in_pieces(fields: dict[str, Any]) -> bytes:
    """An object as JSON; long lists in it are written a piece at a time, so that other threads can run meanwhile."""
    parts = [f"{json.dumps(name)}:{_written(value)}" for name, value in fields.items()]
    return f"{{{','.join(parts)}}}".encode()


_PIECE = 20_000


def _written(value: Any) -> str:
    if not isinstance(value, list) or len(value) <= _PIECE:
        return json.dumps(value, separators=(",", ":"))
    pieces = (value[start : start + _PIECE] for start in range(0, len(value), _PIECE))
    return f"[{','.join(json.dumps(piece, separators=(',', ':'))[1:-1] for piece in pieces)}]"
