"""Routes whose large requests are read beside the loop, so that other clients' streams go on meanwhile.

A call in C keeps all threads from running until it returns, in whichever thread it is made. So a large body is read in
a thread of its own and, where it has many values, by Python code that calls C for one value at a time. How many values
it may have bounds what one call does with them later. Small ones are read as ever, in the loop: a thread would take
longer than they do.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Coroutine
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from mlxr.server.errors import ApiError, bad_field

_T = TypeVar("_T")
_Scan = Callable[[str, int], tuple[Any, int]]
MOST_IN_LOOP = 10_000
"""Signs of structure in a body that the loop reads: some milliseconds."""
MOST_BYTES_IN_LOOP = 256 << 10
MOST_AT_ONCE = 100_000
"""Likewise, in a body that one call reads: 15 ms for numbers, 60 ms for the smallest objects."""
MOST_CONTAINERS = 1 << 16
"""Objects and lists of a body. Freeing them is one call, and so is looking for garbage among them."""
MOST_MEMBERS = 1 << 16
"""Of one object. A dict is made of them in one call."""
MOST_VALUES = 600_000
"""Of a body. Checking a list is one call, and so is writing it."""


class LargeBodyRoute(APIRoute):
    """A route of JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle, field = super().get_route_handler(), self.body_field

        async def handle_any(request: Request) -> Response:
            if field is None or "json" not in request.headers.get("content-type", ""):
                return await handle(request)
            data = await request.body()
            if not data:
                return await handle(request)
            is_small = len(data) <= MOST_BYTES_IN_LOOP and (signs := structure(data)) <= MOST_IN_LOOP
            try:
                if is_small:
                    request._json = read_json(data, signs)
                    return await handle(request)
                value, errors = await asyncio.to_thread(_read, data, field)
            except json.JSONDecodeError as error:
                where = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error", "input": {}}
                raise RequestValidationError([where | {"ctx": {"error": error.msg}}]) from error
            except (ValueError, RecursionError) as error:
                raise HTTPException(400) from error
            if errors:
                raise RequestValidationError(errors)
            request._json = value  # a model that is read already is only passed on
            request.state.is_large = True
            return await handle(request)

        return handle_any


async def made(request: Request, make: Callable[[], _T]) -> _T:
    """What is made of a request: beside the loop if it is large, for then it may have very many messages."""
    return await asyncio.to_thread(make) if getattr(request.state, "is_large", False) else make()


def structure(data: bytes) -> int:
    """Signs of structure in JSON, those in its texts included: there are no more values than these, and one."""
    return sum(data.count(sign) for sign in (b",", b"{", b"["))  # three calls: others can run between them


def read_json(data: bytes, signs: int) -> Any:
    """The value of JSON. With more than `MOST_AT_ONCE` signs of structure, other threads can run meanwhile.

    Args:
        data: the JSON.
        signs: as `structure` counts them.

    Raises:
        ApiError: it has more values, or more objects and lists, than a server reads, or a number that is not finite.
        ValueError: it is no JSON.
        RecursionError: it is too deeply nested.
    """
    if signs <= MOST_AT_ONCE:
        return json.loads(data, parse_int=_integer, parse_float=_float, parse_constant=_float)
    decoder = json.JSONDecoder(parse_float=_float, parse_constant=_float)
    containers = values = 0

    def counted(scan: _Scan, most: int) -> _Scan:
        """What reads the values of one object or list."""
        nonlocal containers
        containers, own = containers + 1, 0
        _refuse_more(containers, MOST_CONTAINERS, "the body has more than {} objects and lists")

        def scan_and_count(text: str, place: int) -> tuple[Any, int]:
            nonlocal values, own
            values, own = values + 1, own + 1
            _refuse_more(values, MOST_VALUES, "the body has more than {} values")
            _refuse_more(own, most, "an object of the body has more than {} members")
            return scan(text, place)

        return scan_and_count

    plain: Any = decoder  # the scanner takes its parsers from these attributes, which have no types
    of_object, of_array = plain.parse_object, plain.parse_array
    plain.parse_object = lambda start, strict, scan, *more: of_object(start, strict, counted(scan, MOST_MEMBERS), *more)
    plain.parse_array = lambda start, scan: of_array(start, counted(scan, MOST_VALUES))
    plain.scan_once = py_make_scanner(decoder)
    return decoder.decode(data.decode(json.detect_encoding(data), "surrogatepass"))


def _integer(digits: str) -> int:
    """Like `int`, but other threads can run before each: one of 4,000 digits takes 0.1 ms."""
    return int(digits)


def _float(text: str) -> float:
    """A number; one that is not finite could not be told again as JSON."""
    number = float(text)
    if not math.isfinite(number):
        raise bad_field("body", f"the body has the number {text:.40}, which is not a finite one: send another")
    return number


def _refuse_more(count: int, most: int, told: str) -> None:
    if count > most:
        raise ApiError(413, f"{told.format(most)}: send less", code="too_large")


def _read(data: bytes, field: Any) -> tuple[Any, Any]:
    """The value of a route's body as its model, and what is wrong with it."""
    value, errors = field.validate(read_json(data, structure(data)), {}, loc=("body",))
    return value, errors


class JsonBytes(StreamingResponse):
    """An answer whose JSON is written already. It is sent in pieces: to copy one of 50 MB takes long."""

    def __init__(self, data: bytes) -> None:
        """Sends the JSON."""

        async def pieces() -> AsyncGenerator[bytes]:
            for start in range(0, len(data), _SENT):
                yield data[start : start + _SENT]

        super().__init__(pieces(), headers={"Content-Length": str(len(data))}, media_type="application/json")


def written_in_pieces(fields: dict[str, Any]) -> bytes:
    """An object as JSON; long lists in it are written a piece at a time, so that other threads can run meanwhile."""
    parts = [f"{json.dumps(name)}:{_written(value)}" for name, value in fields.items()]
    return f"{{{','.join(parts)}}}".encode()


_PIECE, _SENT = 20_000, 1 << 20


def _written(value: Any) -> str:
    if not isinstance(value, list) or len(value) <= _PIECE:
        return json.dumps(value, separators=(",", ":"))
    pieces = (value[start : start + _PIECE] for start in range(0, len(value), _PIECE))
    return f"[{','.join(json.dumps(piece, separators=(',', ':'))[1:-1] for piece in pieces)}]"


class JsonRoute(LargeBodyRoute):
    """A route that reads each body as JSON, whatever its Content-Type, as Ollama does: `curl -d` says it is a form.

    `Guard` sees to it that pages of other sites send none.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `LargeBodyRoute`."""
        handle = super().get_route_handler()

        async def read_as_json(request: Request) -> Response:
            others = [header for header in request.scope["headers"] if header[0] != b"content-type"]
            headers = [*others, (b"content-type", b"application/json")]
            return await handle(Request({**request.scope, "headers": headers}, request.receive))

        return read_as_json
