"""Counts the bytes that Python code reads from files, so that tests count work instead of timing it."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock


class _CountedFile(io.FileIO):
    """A file that appends the size of each read to a list."""

    def __init__(self, path: Path, sizes: list[int]) -> None:
        super().__init__(path)
        self._sizes = sizes

    def readinto(self, buffer: Any) -> int | None:
        """Reads into a buffer; buffered reads come here too."""
        count = super().readinto(buffer)
        self._sizes.append(count or 0)
        return count

    def readall(self) -> bytes:
        """Reads all that is left."""
        data = super().readall()
        self._sizes.append(len(data or b""))
        return data


@contextmanager
def counted_reads() -> Iterator[list[int]]:
    """Sizes of the reads from files opened with `Path.open("rb")` in this context, as they happen."""
    sizes: list[int] = []

    def open_counted(path: Path, mode: str = "r", buffering: int = -1) -> io.IOBase:
        assert mode == "rb", f"expected a file opened to read bytes, got mode {mode}"
        raw = _CountedFile(path, sizes)
        return raw if buffering == 0 else io.BufferedReader(raw)

    with mock.patch.object(Path, "open", open_counted):
        yield sizes
