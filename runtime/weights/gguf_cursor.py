"""Reads the fields of a GGUF header in order, and never beyond its end.

Invariant: before anything is allocated or looped over, the file is known to be long enough for it.
"""

import struct
from typing import Any, BinaryIO

import numpy as np

_AT_ONCE = range(1 << 10, 1 << 20)
"""How many strings are found without a loop of Python's own."""
_BYTES_EACH = 24  # of a string and its size, on average at most: a vocabulary's take 14


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
        """The next strings, as `text` reads them if it is not strict: quickly, since a vocabulary has 262,144.

        Raises:
            GgufFault: the header ends before them.
        """
        if count in _AT_ONCE and (known := self._texts_at_once(count)) is not None:
            return known
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

    def _texts_at_once(self, count: int) -> list[str] | None:
        """The next strings, if all are short and none has a zero; else None, and nothing is read.

        Their sizes take 8 bytes each. So of a size below 65,536, the last 6 bytes or more are zeros, by which it is
        found; and where each string ends at the next one's size, these are all of them.
        """
        data = np.frombuffer(self._stream.read(min(_BYTES_EACH * count, self._limit - self.position)), np.uint8).copy()
        self._stream.seek(self.position)
        zero = data == 0
        two = zero[:-1] & zero[1:]
        six = two[:-4] & two[2:-2] & two[4:]
        six[1:] &= ~zero[: six.size - 1]  # where a run begins
        runs = np.flatnonzero(six[:-2])[:count]
        starts = runs - 2 + zero[runs + 6] + two[runs + 6]
        if starts.size < count or starts[0] != 0:
            return None
        ends = starts + 8 + data[starts] + (data[starts + 1].astype(np.int64) << 8)
        if ends[-1] > data.size or not np.array_equal(ends[:-1], starts[1:]):
            return None
        data[starts] = 0  # stands between the strings now
        texts = np.ones(ends[-1], bool)
        for shift in range(1, 8):
            texts[starts + shift] = False
        found = data[: ends[-1]][texts].tobytes()[1:].decode("utf-8", "surrogateescape").split("\0")
        if len(found) != count:
            return None
        self.position = self._stream.seek(self.position + int(ends[-1]))
        return found

    def check_count(self, count: int, min_size_bytes: int, what: str) -> None:
        """Refuses a count of things that do not fit into the rest of the header, before any loop over them.

        Raises:
            GgufFault: `count` things of `min_size_bytes` bytes or more do not fit.
        """
        if count * min_size_bytes > self._limit - self.position:
            raise GgufFault(f"{count} {what} do not fit into the {self._limit - self.position} bytes that follow")
