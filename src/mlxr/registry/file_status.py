"""Whether the files of a registered model are what they were when it was added, and what is said when it is loaded."""

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from mlxr.compiler.text import printable
from mlxr.loading.options import NO_OPTIONS
from mlxr.registry import RegistryError
from mlxr.registry.records import FileRecord, ModelRecord
from mlxr.registry.registry import Registry

HashProgress = Callable[[Path, int, int], None]
"""Called with a file, how many bytes of it are read, and how many it has."""
_PIECE_BYTES = 1 << 22
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileStatus:
    """The state of a model's files: `ok`, or the first one that changed or is missing."""

    state: Literal["ok", "changed", "missing"]
    path: Path | None = None

    def __str__(self) -> str:
        return self.state if self.path is None else f"{self.state} {self.path}"


OK = FileStatus("ok")


def status_of(files: Iterable[FileRecord], *, verify: bool = False, progress: HashProgress | None = None) -> FileStatus:
    """Compares files with what the registry says of them.

    Args:
        files: the files.
        verify: whether to read them and compare their hashes; otherwise sizes and times of change are compared.
        progress: called while files are read.

    Raises:
        RegistryError: a file is there and cannot be read.
    """
    for file in files:
        try:
            now = file.path.stat()
        except OSError:
            return FileStatus("missing", file.path)
        same = now.st_size == file.size_bytes
        if verify:
            same = same and recorded(file.path, progress).sha256 == file.sha256
        elif now.st_mtime_ns != file.mtime_ns:
            same = False
        if not same:
            return FileStatus("changed", file.path)
    return OK


def recorded(path: Path, progress: HashProgress | None = None, sha256: str | None = None) -> FileRecord:
    """The record of a file, which is read for its hash unless the caller knows that.

    Raises:
        RegistryError: it cannot be read, or it changes meanwhile.
    """
    try:
        before = path.stat()
        digest, done = (sha256, before.st_size) if sha256 else _hash(path, before.st_size, progress)
        after = path.stat()
    except OSError as error:
        raise RegistryError(f"{path}: cannot be read: {error.strerror or error}") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or done != after.st_size:
        raise RegistryError(f"{path}: changed while it was read; try again when nobody writes it")
    return FileRecord(path, before.st_size, before.st_mtime_ns, digest)


def _hash(path: Path, size_bytes: int, progress: HashProgress | None) -> tuple[str, int]:
    """The SHA-256 of a file, and how many bytes were read."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
            done += len(piece)
            if progress is not None:
                progress(path, done, size_bytes)
    return digest.hexdigest(), done


def note_use(model: ModelRecord) -> None:
    """Notes in the registry that a model was loaded, and tells of a file that changed. Neither stops the caller."""
    if (status := status_of(model.files)).state != "ok":
        options = "" if model.options == NO_OPTIONS else ", and its options"
        again = f"mlxr add {model.source} --name {model.name} --replace{options}"
        _warn(f"{model.name}: {status} since it was added; to add it as it is now: {again}")
    try:
        Registry().touch(model.name)
    except RegistryError as error:
        _warn(f"this use is not noted in the registry: {error}")


@cache
def _warn(text: str) -> None:
    """Logs a note, once in a process."""
    _LOG.warning("note: %s", printable(text))
