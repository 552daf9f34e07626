"""Answers that come in pieces, and answers that end when their client goes.

A stream's first piece is awaited before its headers are sent, so that an error before it has an HTTP status. While a
stream has nothing to say for long, it gets comments, so that nobody on the way takes it for dead.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlxr.server.documents.json_form import EscapedJson
from mlxr.server.errors import ApiError, api_error, error_body
from mlxr.server.request_record import note_error

_T = TypeVar("_T")
_LOG = logging.getLogger("mlxr.server")
GONE = 499
"""The status that the log gets for a client that went before its answer; no client sees it."""


class Stream(Response):
    """An answer in pieces. Those that come without a wait between them are sent together.

    The pieces' iterator is closed when the client goes, which cancels what is behind it.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        *,
        failed: Callable[[ApiError], bytes],
        alive_seconds: float,
        media_type: str = "text/event-stream",
        alive: Callable[[], bytes] | None = lambda: b": alive\n\n",
    ) -> None:
        """Begins nothing yet.

        Args:
            pieces: of the body.
            failed: the piece that tells of an error after the headers.
            alive_seconds: after so much silence `alive` is sent.
            media_type: of the body.
            alive: a piece that clients ignore; None: there is none in this format.
        """
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._pieces, self._failed, self._alive = pieces, failed, alive
        self._alive_seconds = alive_seconds
        self._ready: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._last_sent = 0.0
        self._error: ApiError | None = None
        self._has_ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the pieces until they end or the client goes."""
        reading = asyncio.ensure_future(self._read_all())
        sending = asyncio.ensure_future(self._send_all(scope, send))
        others = [asyncio.ensure_future(_left(receive))]
        if self._alive is not None:
            others.append(asyncio.ensure_future(self._stay_alive(self._alive)))
        try:
            await asyncio.wait({sending, others[0]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*others, reading, sending):
                task.cancel()
            result, *_ = await asyncio.gather(sending, reading, *others, return_exceptions=True)
        if isinstance(result, Exception):
            raise result

    async def _read_all(self) -> None:
        """Collects the pieces; what has come together is sent together."""
        try:
            async for piece in self._pieces:
                self._ready.append(piece)
                if self._waiter is not None:
                    self._wake()
        except Exception as raised:
            self._error = told(raised)
        finally:
            self._has_ended = True
            self._wake()
            if (close := getattr(self._pieces, "aclose", None)) is not None:
                await close()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        has_begun = False
        is_old = scope["http_version"] == "1.0"  # it knows no pieces: it gets the whole at once
        loop = asyncio.get_running_loop()
        while True:
            while (is_old or not self._ready) and not self._has_ended:
                self._waiter = loop.create_future()
                await self._waiter
            has_ended, pieces = self._has_ended, self._ready
            self._ready = []
            if self._error is not None and has_ended:
                if not has_begun and not pieces:
                    await error_response(scope["path"], self._error)(scope, _nothing, send)
                    return
                note_error(self._error)
                pieces.append(self._failed(self._error))
            if not has_begun:
                has_begun = True
                if is_old:
                    self.headers["content-length"] = str(sum(map(len, pieces)))
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": not has_ended})
            if has_ended:
                return
            self._last_sent = loop.time()

    async def _stay_alive(self, alive: Callable[[], bytes]) -> None:
        loop = asyncio.get_running_loop()
        self._last_sent = loop.time()
        while True:
            await asyncio.sleep(max(0.001, self._last_sent + self._alive_seconds - loop.time()))
            if loop.time() - self._last_sent >= self._alive_seconds and not self._has_ended:
                self._last_sent = loop.time()
                self._ready.append(alive())
                self._wake()

    def _wake(self) -> None:
        """Lets the sender send what is ready, once the reader waits."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


async def unless_gone(request: Request, answer: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine, which is cancelled if the client goes before it ends.

    Raises:
        ApiError: the client has gone; nobody sees it.
    """
    working = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(GONE, "the client has gone")
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await working


def error_response(path: str, error: ApiError) -> Response:
    """An error in the form of the API that a path belongs to."""
    note_error(error)
    return EscapedJson(error_body(path, error), error.status, error.headers)


def told(raised: BaseException) -> ApiError:
    """What a client is told of an exception; what is the server's own fault is logged."""
    error = api_error(raised)
    if error.status >= 500:
        _LOG.error("a request failed: %s", raised, exc_info=raised if error.status == 500 else None)
    return error


async def _left(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> Any:
    return {"type": "http.disconnect"}
