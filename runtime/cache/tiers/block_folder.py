"""The folder of the disk tier: which files are in it, how large they are, and in which order they were used.

A file's name is `digest-branch.kv`: the digest finds a whole block, the branch those that begin as a prompt goes on.

Each identity has a folder of its own within one root, and the limit is on all of them: blocks of models that nobody
loads any more make room for others. Several processes may share a root. Files appear and vanish whole, so a file that
another process has removed is only a miss; files that another process has added are found by the next scan.
"""

import os
import re
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mlxr.runtime.cache.block_hashes import Digest
from mlxr.runtime.cache.tiers.branches import Branch, Branches

_FOLDER = re.compile(r".+-[0-9a-f]{32}", re.DOTALL)
_FILE = re.compile(r"([0-9a-f]{32})(?:-([0-9a-f]{8}))?\.kv")
"""Files of earlier formats, which have other folders, are without a branch."""
_Place = tuple[str, str]
"""Names of a file's folder and of the file."""
_UNFINISHED = ".new-"
_STALE_SECONDS = 60.0
"""A file that is being written for longer belongs to a process that has died. (If not, its block is not kept.)"""
_TIMES_SECONDS = 60.0
"""After so long, other processes shall know which files were used."""
_SCANS = 16
"""Another scan when a sixteenth of the limit has been written: what other processes write counts too."""


class BlockFolder:
    """The files of one identity, and the sizes of all others in the root.

    One thread writes and scans; any thread may do the rest. No lock is held during input or output. The order of use is
    kept in memory. The next scan or start knows it from the files' times, which are set now and then: 60 blocks take a
    millisecond, and more while another thread runs.
    """

    def __init__(self, root: Path, name: str, limit_bytes: int) -> None:
        """Looks at what is there. It writes nothing, but removes what dead processes left half-written.

        Args:
            root: the folder of all identities. It may not exist.
            name: of the identity's folder.
            limit_bytes: most bytes of all files in the root.
        """
        self.path = root / name
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._root, self._name = root, name
        self._files = _Files(name)
        self._times: dict[Digest, int] = {}
        self._times_set = time.monotonic()
        self._unscanned_bytes = 0
        self._lock = threading.Lock()
        self.scan()

    def __len__(self) -> int:
        return len(self._files.branch_of)

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._files.branch_of

    def file(self, digest: Digest) -> Path:
        """The path of a block's file; there is none if the block is not in the index."""
        return self.path / self._place(digest)[1]

    def newest(self, branch: Branch, most: int) -> list[Digest]:
        """The blocks of a branch that came last, the newest one first."""
        with self._lock:
            return self._files.branches.newest(branch, most)

    def scan(self) -> None:
        """Finds out again which files are in the root."""
        self.set_times()
        files: list[tuple[int, _Place, int]] = []
        for folder in _entries(self._root):
            for entry in _entries(Path(folder)) if _FOLDER.fullmatch(folder.name) else ():
                with suppress(OSError):  # it has just been removed
                    status = entry.stat(follow_symlinks=False)
                    if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        files.append((status.st_mtime_ns, (folder.name, entry.name), status.st_size))
                    elif entry.name.startswith(_UNFINISHED) and status.st_mtime < time.time() - _STALE_SECONDS:
                        Path(entry).unlink()
        listing = _Files(self._name)
        for _, place, size in sorted(files):
            listing.add(place, size)
        with self._lock:
            self._files = listing
            self.size_bytes = sum(listing.sizes.values())
            self._unscanned_bytes = 0

    def use(self, digests: Sequence[Digest]) -> None:
        """Makes these the most recently used blocks, the first one most of all: later ones are of no use without it."""
        now = time.time_ns()
        with self._lock:
            for age, digest in reversed(list(enumerate(digests))):
                if digest in self._files.branch_of:
                    self._files.sizes.move_to_end(self._place(digest))
                    self._times[digest] = now - age

    @property
    def has_old_times(self) -> bool:
        """Whether `set_times` was last called a minute ago or earlier, and there is something to set."""
        return bool(self._times) and time.monotonic() - self._times_set > _TIMES_SECONDS

    def set_times(self) -> None:
        """Sets the times of the files that were used."""
        with self._lock:
            times, self._times, self._times_set = self._times, {}, time.monotonic()
        for digest, used in times.items():
            with suppress(OSError):  # another process has just removed it, or it is somebody else's
                os.utime(self.file(digest), ns=(used, used))

    def write(self, digest: Digest, branch: Branch, parts: Sequence[bytes | memoryview]) -> None:
        """Writes a block's file, which appears whole or not at all. Makes room for it first.

        It is not forced to the disk: after a power cut a file may be damaged, and then its checksum is wrong.

        Args:
            digest: of the block.
            branch: of the block.
            parts: the file's content, in order.

        Raises:
            OSError: it cannot be written.
        """
        size = sum(map(len, parts))
        self._make_room(size)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=self.path)
        temporary, place = Path(name), (self._name, _file_name(digest, branch))
        try:
            with os.fdopen(handle, "wb") as file:
                for part in parts:
                    file.write(part)
            temporary.replace(self._root.joinpath(*place))
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        self._forget(place)
        with self._lock:
            self._files.add(place, size)
            self.size_bytes += size
            self._unscanned_bytes += size

    def forget(self, digest: Digest) -> None:
        """Takes a block that cannot be read out of the index; the next scan may find it again."""
        self._forget(self._place(digest))

    def remove(self, digest: Digest) -> None:
        """Removes a block's file, if it is there and can be removed; forgets it in any case."""
        self._remove(self._place(digest))

    def _make_room(self, size: int) -> None:
        assert size <= self.limit_bytes, f"a block of {size} bytes, within {self.limit_bytes}"
        if self._unscanned_bytes > self.limit_bytes // _SCANS:
            self.scan()
        while self.size_bytes + size > self.limit_bytes:
            with self._lock:
                oldest = next(iter(self._files.sizes), None)
            if oldest is None:  # another thread has just removed the last one
                return
            self._remove(oldest)

    def _place(self, digest: Digest) -> _Place:
        return self._name, _file_name(digest, self._files.branch_of.get(digest, b""))

    def _remove(self, place: _Place) -> None:
        self._forget(place)
        with suppress(OSError):
            self._root.joinpath(*place).unlink()

    def _forget(self, place: _Place) -> None:
        with self._lock:
            self.size_bytes -= self._files.remove(place)


class _Files:
    """The files of all identities, the least recently used first, and the names of blocks of one of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.sizes: OrderedDict[_Place, int] = OrderedDict()
        self.branch_of: dict[Digest, Branch] = {}
        self.branches = Branches()

    def add(self, place: _Place, size: int) -> None:
        self.sizes[place] = size
        if names := self._names(place):
            digest, branch = names
            self.branch_of[digest] = branch
            self.branches.add(branch, digest)

    def remove(self, place: _Place) -> int:
        """Returns the size; 0 if the file is not there."""
        if names := self._names(place):
            digest, branch = names
            self.branches.remove(branch, digest)
            if self.branch_of.get(digest) == branch:
                del self.branch_of[digest]
        return self.sizes.pop(place, 0)

    def _names(self, place: _Place) -> tuple[Digest, Branch] | None:
        names = _FILE.fullmatch(place[1]) if place[0] == self._name else None
        return (bytes.fromhex(names[1]), bytes.fromhex(names[2])) if names and names[2] else None


def _file_name(digest: Digest, branch: Branch) -> str:
    return f"{digest.hex()}{'-' if branch else ''}{branch.hex()}.kv"


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # it does not exist or cannot be read, or is a file
        return []
