"""The folder where a host keeps compiled libraries.

The name of an entry hashes everything that decides its content. An entry appears whole or not at all (it is written
under another name, then renamed), so several processes may build the same one at once. The hash of its content is
stored beside it and checked before it is loaded: a process that maps a truncated library dies.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlxr.compiler.errors import HostError, MlxrError
from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.undone_at_signals import undone_at_signals


def digest(*parts: str) -> str:
    """128 bits of SHA-256 over several texts, in hexadecimal; the borders between the texts are hashed too."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(f"{len(part)}:".encode())
        sha.update(part.encode())
    return sha.hexdigest()[:32]


class LibraryCache:
    """The libraries of one host. `host` is the name of the host and of the folder."""

    def __init__(self, host: str) -> None:
        self.host = host

    def folder(self) -> Path:
        """The folder; made if it does not exist.

        Raises:
            HostError: it cannot be made.
        """
        try:
            folder = cache_folder(self.host)
        except MlxrError as error:
            raise HostError(f"{self.host}: {error}") from error
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self.unwritable(folder, error) from error
        return folder

    def read(self, target: Path) -> bytes | None:
        """An entry's content, or None if it is missing or damaged."""
        try:
            content = target.read_bytes()
            return content if _hash(content) == _hash_path(target).read_text("utf-8") else None
        except (OSError, ValueError):
            return None

    def publish(self, built: Path, target: Path) -> None:
        """Puts a file and its hash into the cache, once both are wholly on disk.

        Raises:
            OSError: the folder cannot be written.
        """
        _hash_path(target).parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".new-", dir=target.parent)
        staged, hashed = Path(name), Path(f"{name}.sha256")
        try:
            with os.fdopen(handle, "wb") as file, built.open("rb") as source:
                shutil.copyfileobj(source, file)
                file.flush()
                os.fsync(file.fileno())
            staged.chmod(0o644)
            hashed.write_text(_hash(built.read_bytes()), "utf-8")
            hashed.replace(_hash_path(target))
            staged.replace(target)
        finally:
            staged.unlink(missing_ok=True)
            hashed.unlink(missing_ok=True)

    def remove(self, entries: Iterable[Path]) -> None:
        """Removes those of these entries that exist.

        Raises:
            HostError: one cannot be removed.
        """
        for path in entries:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise HostError(f"{self.host}: cannot remove the damaged {path}: {error}; remove it by hand") from error

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A temporary folder to build in.

        Raises:
            HostError: it cannot be written.
        """
        folder = self.folder()
        try:
            with undone_at_signals(), tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as work:
                yield Path(work)
        except OSError as error:
            raise self.unwritable(folder, error) from error

    def unwritable(self, folder: Path, error: OSError) -> HostError:
        """The error to raise if the folder cannot be written."""
        return HostError(
            f"{self.host}: cannot write to the cache folder {folder}: {error}; set MLXR_CACHE_DIR to a folder that can "
            "be written"
        )


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hash_path(target: Path) -> Path:
    return target.parent / "sha256" / target.name
