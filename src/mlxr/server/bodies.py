"""Reads the bodies of requests: whole ones, in time, and not too many bytes of unfinished ones at a time.

A body is read before anything else is done for its request, into one piece of memory, which the system gets back. A
client that is slow, or that sends many bodies and ends none, holds neither the server's memory nor its connections.
"""

import asyncio
import math

from starlette.types import Message, Receive, Scope

from mlxr.runtime.cache.tiers.memory_tier import give_memory_back
from mlxr.server.errors import ApiError

_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_LEAST_RATE = 16 << 10
"""Bytes a second that each body may take, whatever its length: a slow phone sends as much."""
_WORTH_GIVING_BACK = 64 << 20
"""So many bytes of unfinished bodies make it worth asking the C library for what it keeps."""
_CLOSE = {"Connection": "close"}  # the rest of the body may come, and is no request


class _Unfinished:
    """A body that is being read."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.data = bytearray()
        self.timeout = timeout
        self.is_given_up = False
        self.read = 0


class Bodies:
    """The bodies that a server reads.

    Mutable state: those that are unfinished, in the order in which they began, and their bytes. Of one event loop.
    """

    def __init__(self, most_bytes: int, most_unfinished_bytes: int, seconds: float) -> None:
        """Reads nothing yet.

        Args:
            most_bytes: of a body.
            most_unfinished_bytes: of all bodies that are being read; beyond it, the one that began first is given up.
            seconds: how long a body may take; one that is long gets a second more for each 16 KiB that have come.
        """
        self._most, self._most_unfinished, self._seconds = most_bytes, most_unfinished_bytes, seconds
        self._unfinished: dict[_Unfinished, None] = {}
        self._bytes = self._peak = 0

    @property
    def unfinished_bytes(self) -> int:
        """Of all bodies that are being read now."""
        return self._bytes

    async def read(self, scope: Scope, receive: Receive) -> Receive:
        """Reads a request's body.

        Returns:
            What gives the app the body in one message, and then whatever comes.

        Raises:
            ApiError: it is too long, too slow, was given up for others, or its client has gone.
        """
        if scope["method"] not in _WITH_BODY:
            return receive
        told = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if told.isdigit() and int(told) > self._most:
            raise self._too_large()
        message = await self._whole(receive)

        async def again() -> Message:
            nonlocal message
            if (first := message) is None:
                return await receive()
            message = None
            return first

        return again

    async def _whole(self, receive: Receive) -> Message | None:
        loop = asyncio.get_running_loop()
        until = None if math.isinf(self._seconds) else loop.time() + self._seconds
        try:
            async with asyncio.timeout_at(until) as timeout:
                body = _Unfinished(timeout)
                self._unfinished[body] = None
                try:
                    while True:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise ApiError(499, "the client has gone")
                        if body.is_given_up:
                            raise TimeoutError
                        if not body.data and not message.get("more_body"):
                            if len(message.get("body", b"")) > self._most:
                                raise self._too_large()
                            return message  # as nearly all: they came in one piece
                        self._add(body, message.get("body", b""))
                        if body.is_given_up:
                            raise TimeoutError
                        if not message.get("more_body"):
                            return {"type": "http.request", "body": bytes(body.data), "more_body": False}
                        if until is not None:
                            timeout.reschedule(until + len(body.data) / _LEAST_RATE)
                finally:
                    del self._unfinished[body]
                    self._drop(body)
                    if not self._bytes and self._peak > _WORTH_GIVING_BACK:
                        self._peak = 0
                        loop.call_later(1, give_memory_back)  # when the requests' own memory is free, too
        except TimeoutError as error:
            if body.is_given_up:
                raise ApiError(
                    503,
                    f"the bodies of unfinished requests have more than {self._most_unfinished} bytes together, and "
                    "this one began first: try again later",
                    "server_error",
                    "too_many_bodies",
                    headers={"Retry-After": "1", **_CLOSE},
                ) from error
            raise ApiError(
                408,
                f"the body did not come in time: after {self._seconds:g} s there were {body.read} bytes; send it "
                "faster, or start the server with a longer --body-time",
                code="body_too_slow",
                headers=_CLOSE,
            ) from error

    def _add(self, body: _Unfinished, piece: bytes) -> None:
        if len(body.data) + len(piece) > self._most:
            raise self._too_large()
        body.data += piece
        self._bytes += len(piece)
        self._peak = max(self._peak, self._bytes)
        while self._bytes > self._most_unfinished:
            first = next((other for other in self._unfinished if not other.is_given_up), None)
            if first is None:
                return
            first.is_given_up = True
            if not first.timeout.expired():
                first.timeout.reschedule(0)  # its own task ends it
            self._drop(first)

    def _drop(self, body: _Unfinished) -> None:
        """Lets go of its bytes now: an error's traceback may keep the record for a while."""
        self._bytes -= len(body.data)
        body.data, body.read = bytearray(), len(body.data)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body has more than {self._most} bytes, the most that this server takes: send less, or start the "
            "server with a larger --max-body",
            code="too_large",
            headers=_CLOSE,
        )
