"""Connections whose clients must send the head of each request in time, and of which there are not too many."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 << 10


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's connection with the limits that it lacks.

    Without a time limit, clients that send a byte now and then would keep connections for ever. The time between two
    requests is uvicorn's own (`timeout_keep_alive`).
    """

    header_seconds = 10.0
    most_connections = 4096

    def __init__(self, *args: Any, **options: Any) -> None:
        """See uvicorn."""
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for the first head. Requests on one connection too many are marked, for `Guard` to refuse."""
        super().connection_made(cast(asyncio.Transport, transport))
        if len(self.connections) > self.most_connections:
            self.app_state = {**self.app_state, "is_beyond_limit": True}
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_waiting()  # the head is complete
            return
        self._wait_for_head()
        self._head_bytes += len(data)
        if self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting."""
        self._end_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._head_timer is None and self.header_seconds < float("inf"):
            self._head_timer = self.loop.call_later(self.header_seconds, self._refuse, b"408 Request Timeout")

    def _end_waiting(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: bytes) -> None:
        self._end_waiting()
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()


def limited_connection(header_seconds: float, most_connections: int) -> type[LimitedConnection]:
    """The class of a server's connections.

    Args:
        header_seconds: how long a client may take for the head of a request.
        most_connections: most connections at a time that are served.
    """
    return type(
        "Connection", (LimitedConnection,), {"header_seconds": header_seconds, "most_connections": most_connections}
    )
