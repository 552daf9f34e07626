"""Writes a file that a user named with an option such as `-o`. Every command that writes one does it here.

* A new file, or a regular file that is replaced, appears whole or not at all. A file that is replaced keeps its mode.
* Anything else (a device, a FIFO, `/dev/stdout`, a symbolic link, a file with several hard links) stays what it is: the
  content is written into it.
* A file that the user may not write is left alone, although its folder would allow to replace it.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.undone_at_signals import undone_at_signals


def check_output(path: Path) -> None:
    """Checks that a file can be written there, before the work whose result it will hold.

    Raises:
        MlxrError: its folder does not exist, or it is a folder itself, or is write-protected.
    """
    try:
        if path.is_dir():
            raise MlxrError(f"cannot write {path}: it is a folder; name a file")
        if not path.absolute().parent.is_dir():
            raise MlxrError(f"cannot write {path}: the folder {path.parent} does not exist")
        if path.exists() and _is_protected(path):
            raise MlxrError(f"cannot write {path}: it is write-protected; name another file, or allow it (chmod u+w)")
        if path.is_symlink() and not path.exists() and not path.resolve().parent.is_dir():
            raise MlxrError(f"cannot write {path}: it links to {path.readlink()}, in a folder that does not exist")
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def check_not_read(path: Path, read: Iterable[Path]) -> None:
    """Checks that a file to be written is none of those that are read meanwhile, by this name or by another one.

    Raises:
        MlxrError: it is.
    """
    try:
        if path.exists() and any(path.samefile(each) for each in read):
            raise MlxrError(f"cannot write {path}: the model is read from this file; name another one")
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _is_protected(path: Path) -> bool:
    """Whether this user may not write a file, or no user may (which root could ignore)."""
    return not os.access(path, os.W_OK) or path.stat().st_mode & 0o222 == 0


def is_written_through(path: Path) -> bool:
    """Whether content is written into what is there, instead of replacing it."""
    return path.is_symlink() or (path.exists() and (not path.is_file() or path.stat().st_nlink > 1))


def write_output(path: Path, content: bytes) -> None:
    """Writes the file.

    Raises:
        MlxrError: it cannot be written; a file that would have been replaced is then as it was.
    """
    check_output(path)
    try:
        if is_written_through(path):
            with path.open("wb") as stream:
                stream.write(content)
            return
        with _folder_beside(path) as folder:
            staged = folder / "output"
            staged.write_bytes(content)
            if path.exists():
                staged.chmod(path.stat().st_mode & 0o7777)
            staged.replace(path)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


@contextmanager
def open_output(path: Path, size_bytes: int) -> Iterator[BinaryIO]:
    """A stream into the file, which appears whole when the context ends without an error, or not at all.

    Args:
        path: where to write.
        size_bytes: about how much will be written.

    Raises:
        MlxrError: as `write_output`, or the disk has not so much room.
    """
    check_output(path)
    try:
        if is_written_through(path):
            with path.open("wb") as stream:
                yield stream
            return
        check_room(path, size_bytes)
        with _folder_beside(path) as folder:
            staged = folder / "output"
            with staged.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if path.exists():
                staged.chmod(path.stat().st_mode & 0o7777)
            staged.replace(path)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


@contextmanager
def new_folder(path: Path, size_bytes: int) -> Iterator[Path]:
    """A folder to fill, which gets this name when the context ends without an error, and is removed otherwise.

    Raises:
        MlxrError: there is something of that name, or it cannot be written, or the disk has not so much room.
    """
    try:
        if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
            raise MlxrError(f"cannot write {path}: it exists; name a new folder, or an empty one")
        if not path.absolute().parent.is_dir():
            raise MlxrError(f"cannot write {path}: the folder {path.parent} does not exist")
        check_room(path, size_bytes)
        with _folder_beside(path) as outer:
            staged = outer / "output"
            staged.mkdir()
            yield staged
            staged.replace(path)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


@contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """A folder on the same disk, which is removed whatever happens, unless the process is killed outright."""
    with (
        undone_at_signals(),
        tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".mlxr-") as folder,
    ):
        yield Path(folder)


def check_room(path: Path, size_bytes: int) -> None:
    """Checks that the disk has room for so much.

    Raises:
        MlxrError: it has not.
        OSError: nobody knows.
    """
    free = shutil.disk_usage(path.absolute().parent).free
    if free < size_bytes:
        raise MlxrError(f"cannot write {path}: it takes {size_bytes:,} bytes, and its disk has {free:,} left")


def _unwritable(path: Path, error: OSError | ValueError) -> MlxrError:
    return MlxrError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")
