"""Connections whose clients must send the head of each request in time, and of which there are not too many."""

import asyncio
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mlxr.server.documents.json_form import EscapedJson
from mlxr.server.errors import ApiError, error_body

MOST_HEAD_BYTES = 64 << 10
_MOST_UNREAD_BYTES = 16 << 20
"""So much of a body may still come after its request was refused; clients that write before they read need that."""


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
        self._unread_bytes = 0
        self._is_in_body = False
        self.url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for the first head. Requests on one connection too many are marked, for `Guard` to refuse."""
        super().connection_made(cast(asyncio.Transport, transport))
        if len(self.connections) > self.most_connections:
            self.app_state = {**self.app_state, "is_beyond_limit": True}
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request."""
        was_in_body = self._is_in_body
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_waiting()  # the head is complete
            return
        if self._is_in_body:  # of a request that was answered already: no second answer
            self._pass_over(len(data))
            return
        self._wait_for_head()
        self._head_bytes += 0 if was_in_body else len(data)
        if self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(
                ApiError(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"the request's path and headers have more than {MOST_HEAD_BYTES} bytes: send less in them",
                    code="too_large",
                )
            )

    def on_headers_complete(self) -> None:
        """A head has ended, and its body begins."""
        self._is_in_body, self._unread_bytes = True, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A body has ended, or there was none."""
        self._is_in_body = False
        if self._unread_bytes:
            self._unread_bytes = 0
            self._end_waiting()
        super().on_message_complete()

    def _pass_over(self, size_bytes: int) -> None:
        """Waits for the end of a body that nobody reads, but not for ever."""
        if self._unread_bytes == 0:
            self._end_waiting()
            if self.header_seconds < float("inf"):
                self._head_timer = self.loop.call_later(self.header_seconds, self.transport.close)
        self._unread_bytes += size_bytes
        if self._unread_bytes > _MOST_UNREAD_BYTES:
            self._end_waiting()
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting."""
        self._end_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._head_timer is None and self.header_seconds < float("inf"):
            late = ApiError(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the request's headers did not come within {self.header_seconds:g} seconds: send it again",
                code="timeout",
            )
            self._head_timer = self.loop.call_later(self.header_seconds, self._refuse, late)

    def _end_waiting(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: ApiError) -> None:
        self._end_waiting()
        if not self.transport.is_closing():
            body = EscapedJson(error_body(self.url.decode("ascii", "replace"), error)).body
            head = (
                f"HTTP/1.1 {error.status:d} {HTTPStatus(error.status).phrase}\r\nconnection: close\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
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
