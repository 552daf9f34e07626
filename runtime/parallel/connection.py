"""A connection of the control channel: messages over TCP, each a header and bytes.

Nothing that comes in is executed, and nothing is allocated for a length that the receiver does not expect.
"""

import json
import select
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any

from mlxr.compiler.errors import HostError

_HEADER = struct.Struct("<4sIQ")
_MAGIC = b"MLXR"
MOST_TEXT_BYTES = 1 << 20
"""Most bytes of a message of facts, and of an error."""

Facts = Mapping[str, Any]
"""What a message of facts says: a JSON object."""


class MessageKind(IntEnum):
    """What a message is."""

    FACTS = 1
    ERROR = 2
    STEP = 3
    COPY = 4
    READ = 5
    WRITE = 6
    BLOCKS = 7
    CLOSE = 8


class ConnectionEndedError(Exception):
    """The other side has ended the connection, or it broke."""


class Connection:
    """Sends and receives messages. One thread may send while another receives."""

    def __init__(self, link: socket.socket, peer: str) -> None:
        """Takes a connected socket.

        Args:
            link: the socket, which blocks.
            peer: who is at the other end, for messages.
        """
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link, self.peer = link, peer

    def fileno(self) -> int:
        """Of the socket, to wait for messages of several connections."""
        return self._link.fileno()

    def send(self, kind: MessageKind, data: "bytes | memoryview" = b"") -> None:
        """Sends a message.

        Raises:
            ConnectionEndedError: it cannot be sent.
        """
        head = _HEADER.pack(_MAGIC, kind, len(data))
        try:
            if len(data) < 1 << 16:
                self._link.sendall(head + bytes(data))  # in one packet
            else:
                self._link.sendall(head)
                self._link.sendall(data)
        except OSError as error:
            raise ConnectionEndedError(str(error.strerror or error)) from error

    def send_facts(self, facts: Facts) -> None:
        """Sends a JSON object.

        Raises:
            ConnectionEndedError: it cannot be sent.
        """
        self.send(MessageKind.FACTS, json.dumps(dict(facts)).encode())

    def send_error(self, text: str) -> None:
        """Sends an error, if that is still possible."""
        with suppress(ConnectionEndedError):
            self.send(MessageKind.ERROR, text.encode(errors="replace")[:MOST_TEXT_BYTES])

    def has_message(self, seconds: float) -> bool:
        """Waits for a message to come, or for the connection to end, for so long at most."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def receive(self, most_bytes: int = MOST_TEXT_BYTES) -> tuple[MessageKind, bytearray]:
        """Waits for a message.

        Args:
            most_bytes: the most bytes that it may have after its header.

        Raises:
            ConnectionEndedError: there is none any more.
            HostError: what came is no message, or a longer one than the other side may send.
        """
        magic, kind, length = _HEADER.unpack(self._read(_HEADER.size))
        if magic != _MAGIC or kind not in MessageKind.__members__.values():
            raise HostError(f"{self.peer} sent bytes that do not begin a message of the control channel")
        if length > most_bytes:
            raise HostError(f"{self.peer} sent a message of {length} bytes, expected at most {most_bytes}")
        return MessageKind(kind), self._read(length)

    def receive_facts(self) -> dict[str, Any]:
        """Waits for a JSON object.

        Raises:
            ConnectionEndedError: there is none any more.
            HostError: it is something else, or the other side reports an error.
        """
        kind, data = self.receive()
        if kind == MessageKind.ERROR:
            raise HostError(bytes(data).decode(errors="replace"))
        try:
            facts = json.loads(bytes(data)) if kind == MessageKind.FACTS else None
        except ValueError:
            facts = None
        if not isinstance(facts, dict):
            raise HostError(f"{self.peer} sent {kind.name}, expected facts as a JSON object")
        return facts

    def shut(self) -> None:
        """Ends the connection, also for a thread that waits for a message."""
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection and frees it."""
        self.shut()
        self._link.close()

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        view, start = memoryview(data), 0
        while start < count:
            try:
                size = self._link.recv_into(view[start:])
            except OSError as error:
                raise ConnectionEndedError(str(error.strerror or error)) from error
            if not size:
                raise ConnectionEndedError("it has ended the connection")
            start += size
        return data
