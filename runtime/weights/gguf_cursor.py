"""Reads the fields of a GGUF header in order, and never beyond its end.

Invariant: before anything is allocated or looped over, the file is known to be long enough for it.
"""

import struct
from typing import Any, BinaryIO


class GgufFault(Exception):  # noqa: N818 - never leaves the package
    """A rule of the format is broken; the caller, which knows the path, turns this into a WeightsError."""


class GgufCursor:
    """A position in the header, which ends at `limit` bytes at the latest."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self.position = 0

    def take(self, size_bytes: int, what: str) -> bytes:
        """The next `size_bytes` bytes.

        Raises:
            GgufFault: there are fewer.
        """
        if size_bytes > self._limit - self.position:
            raise GgufFault(f"{what} takes {size_bytes} bytes from {self.position}, the header ends at {self._limit}")
        data = self._stream.read(size_bytes)
        if len(data) != size_bytes:
            raise GgufFault(f"the file was cut short while {what} was read")
        self.position += size_bytes
        return data

    def unpack(self, codes: str, what: str) -> tuple[Any, ...]:
        """The next fields, little-endian and unpadded, by their `struct` codes.

        Raises:
            GgufFault: the header ends before them.
        """
        layout = f"<{codes}"
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))

    def text(self, what: str, strict: bool = True) -> str:
        """The next string. Bytes that are not UTF-8 become lone surrogates, or a fault if `strict`.

        Raises:
            GgufFault: the header ends before it, or it is not UTF-8.
        """
        (size_bytes,) = self.unpack("Q", what)
        try:
            return self.take(size_bytes, what).decode("utf-8", "strict" if strict else "surrogateescape")
        except UnicodeDecodeError as error:
            raise GgufFault(f"{what} is not UTF-8") from error

    def texts(self, count: int, what: str) -> list[str]:
        """The next strings, as `text` reads them if it is not strict: in one loop, since a vocabulary has 262,144.

        Raises:
            GgufFault: the header ends before them.
        """
        found = []
        read, left = self._stream.read, self._limit - self.position
        for _ in range(count):
            size_bytes = 8 + int.from_bytes(read(8), "little") if left >= 8 else 8
            if size_bytes > left:
                begin, end = self._limit - left, self._limit
                raise GgufFault(f"{what} takes {size_bytes} bytes from {begin}, the header ends at {end}")
            data = read(size_bytes - 8)
            if len(data) != size_bytes - 8:
                raise GgufFault(f"the file was cut short while {what} was read")
            left -= size_bytes
            found.append(data.decode("utf-8", "surrogateescape"))
        self.position = self._limit - left
        return found

    def check_count(self, count: int, min_size_bytes: int, what: str) -> None:
        """Refuses a count of things that do not fit into the rest of the header, before any loop over them.

        Raises:
            GgufFault: `count` things of `min_size_bytes` bytes or more do not fit.
        """
        if count * min_size_bytes > self._limit - self.position:
            raise GgufFault(f"{count} {what} do not fit into the {self._limit - self.position} bytes that follow")
