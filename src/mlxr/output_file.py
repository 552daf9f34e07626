"""Writes a file that a user named with an option such as `-o`. Every command that writes one does it here.

* A new file, or a regular file that is replaced, appears whole or not at all. A file that is replaced keeps its mode.
* Anything else (a device, a FIFO, `/dev/stdout`, a symbolic link, a file with several hard links) stays what it is: the
  content is written into it.
* A file that the user may not write is left alone, although its folder would allow to replace it.
"""

import os
import tempfile
from pathlib import Path

from mlxr.compiler.errors import MlxrError


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
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".mlxr-") as folder:
            staged = Path(folder) / "output"
            staged.write_bytes(content)
            if path.exists():
                staged.chmod(path.stat().st_mode & 0o7777)
            staged.replace(path)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError | ValueError) -> MlxrError:
    return MlxrError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")
