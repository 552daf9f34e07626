"""Reads a file of an artifact, which anybody may have made: never a device or a pipe, and never too much."""

import os
import stat
from pathlib import Path

_MOST_BYTES = 256 << 20
"""A hundred times what the files of the largest models have."""


def read_regular(path: Path) -> bytes:
    """A file's content; links are followed.

    Raises:
        OSError: it cannot be read, is too large, or is no regular file: /dev/zero has no end, and a pipe waits.
        ValueError: no file has such a name.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a regular file")
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(0, f"it has more than {_MOST_BYTES} bytes")
    return content
