"""Downloads one file into huggingface_hub's cache, from where an earlier attempt ended, and checks its hash.

The cache has content by its digest, in `blobs/`, and links to it from `snapshots/COMMIT/`. huggingface_hub begins a
file anew in each process; we write into `DIGEST.mlxr.incomplete`, which stays, and give the file its name when it is
whole and right. The links are made by huggingface_hub itself.

Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import fcntl
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

from mlxr.compiler.version import VERSION
from mlxr.hub import HubError
from mlxr.hub.choose_files import HubFile

HubProgress = Callable[[str, HubFile, int], None]
"""Called with what is done (`fetching`, `checking`), a file, and how many of its bytes are done.

What it raises ends the fetch, which can go on later.
"""

_PIECE_BYTES = 1 << 22
_SHA256_DIGITS = 64


def blob_path(repo: str, file: HubFile) -> Path:
    """Where the cache has the content of a file."""
    return _blobs(repo) / file.digest


def has_begun(repo: str) -> bool:
    """Whether the cache has any bytes of a repository's files."""
    return any(_blobs(repo).glob("*"))


def _blobs(repo: str) -> Path:
    from huggingface_hub import constants  # noqa: PLC0415 (slow to import)
    from huggingface_hub.file_download import repo_folder_name  # noqa: PLC0415

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    return folder.absolute() / "blobs"


def partial_path(blob: Path) -> Path:
    """Where a file is written until it is whole."""
    return blob.with_name(f"{blob.name}.mlxr.incomplete")


def bytes_here(repo: str, file: HubFile) -> int:
    """How many bytes of a file an earlier attempt, or another program, has fetched."""
    blob = blob_path(repo, file)
    for path in (blob, partial_path(blob)):
        with suppress(FileNotFoundError):  # another process may be about to give it its name
            return min(path.stat().st_size, file.size_bytes)
    return 0


def download(repo: str, commit: str, file: HubFile, progress: HubProgress) -> Path:
    """Fetches a file if the cache lacks it, and checks its content in any case.

    Returns:
        Its path in the snapshot of the commit.

    Raises:
        HubError: its content is not what the hub says.
        Exception: what huggingface_hub raises; see `worded`.
    """
    from huggingface_hub import constants, hf_hub_download  # noqa: PLC0415

    blob = blob_path(repo, file)
    if not blob.is_file() and file.size_bytes <= constants.MAX_HTTP_DOWNLOAD_SIZE:
        _fetch(repo, commit, file, blob, progress)
    # It finds the blob and links to it; larger files come through its own protocol, Xet.
    path = Path(
        hf_hub_download(
            repo, file.path, revision=commit, cache_dir=constants.HF_HUB_CACHE, endpoint=constants.ENDPOINT, **_US
        )
    )
    if (got := _digest(path, file, progress)) != file.digest:
        raise HubError(
            f"{path}: this is not the content that the hub has under that name (its digest is {got}, the hub says "
            f"{file.digest}): remove {path.resolve()} and fetch it again"
        )
    return path


def _fetch(repo: str, commit: str, file: HubFile, blob: Path, progress: HubProgress) -> None:
    from huggingface_hub import constants, hf_hub_url  # noqa: PLC0415
    from huggingface_hub.file_download import http_get  # noqa: PLC0415

    utils: Any = importlib.import_module("huggingface_hub.utils")  # its annotations do not say what it exports
    headers = utils.build_hf_headers(**_US)
    url = hf_hub_url(repo, file.path, revision=commit, endpoint=constants.ENDPOINT)
    unfinished = partial_path(blob)
    blob.parent.mkdir(parents=True, exist_ok=True)
    with _alone(unfinished) as stream:
        if blob.is_file():  # another process fetched it meanwhile
            unfinished.unlink()
            return
        if stream.tell() > file.size_bytes:
            stream.truncate(0)
            stream.seek(0)
        done = stream.tell()
        bar: Any = partial(_Bar, lambda size_bytes: progress("fetching", file, size_bytes))
        http_get(url, stream, resume_size=done, headers=headers, expected_size=file.size_bytes, tqdm_class=bar)
        stream.flush()
        os.fsync(stream.fileno())
        if (got := _digest(unfinished, file, progress)) != file.digest:
            unfinished.unlink()
            raise HubError(
                f"{repo}: {file.path} arrived damaged (its digest is {got}, the hub says {file.digest}); it was thrown "
                "away: try again"
            )
        unfinished.replace(blob)


@contextmanager
def _alone(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to append to it; waits for other processes that have it open so."""
    while True:
        with path.open("ab") as stream:
            with suppress(OSError):  # some network file systems have no locks; the hash is checked in any case
                fcntl.flock(stream, fcntl.LOCK_EX)
            # Whoever had the lock may have removed the file, or given it its name.
            if _is_at(stream, path):
                stream.seek(0, os.SEEK_END)  # it may have grown meanwhile
                yield stream
                return


def _is_at(stream: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one that is at a path now."""
    try:
        return path.stat().st_ino == os.fstat(stream.fileno()).st_ino
    except FileNotFoundError:
        return False


class _Bar:
    """What huggingface_hub takes for a progress bar."""

    def __init__(self, tell: Callable[[int], None], *, initial: int = 0, **_options: object) -> None:
        self._tell, self._done = tell, initial

    def update(self, count: float | None = 1) -> None:
        self._done += int(count or 0)
        self._tell(self._done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def _digest(path: Path, file: HubFile, progress: HubProgress) -> str:
    """The digest of a file's content, of the kind that the hub gives."""
    git = len(file.digest) != _SHA256_DIGITS
    digest = hashlib.sha1(usedforsecurity=False) if git else hashlib.sha256()
    done = 0
    with path.open("rb", buffering=0) as stream:
        if git:
            digest.update(f"blob {os.fstat(stream.fileno()).st_size}\0".encode())
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
            done += len(piece)
            progress("checking", file, done)
    return digest.hexdigest()


_US: dict[str, Any] = {"library_name": "mlxr", "library_version": VERSION}
