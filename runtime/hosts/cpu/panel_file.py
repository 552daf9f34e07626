"""The file of a model's packed panels: made once, then mapped read-only by every process that runs the model.

It is in the folder `packed` of the cache. Its name hashes everything that decides its content: the tensors of the plan,
how panels are packed, and the weight file. After a page with a head come the tensors, each from a page on.

A file appears whole or not at all: it is written under another name, brought to disk, and renamed. While a process
makes it, others wait, and then map it. The head has the length of the file, when the weight files were last changed,
and a hash of the first and the last bytes of each tensor. A file that does not agree is made again. (Nobody reads all
of it again to see whether it is as it was written: that would take as long as to pack.)

It must not be shortened while it is mapped; it may be removed.
"""

import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import CTensor, size
from mlxr.compiler.errors import HostError, MlxrError
from mlxr.runtime.cache_folder import PACKED_FOLDER, cache_folder
from mlxr.runtime.undone_at_signals import undone_at_signals
from mlxr.runtime.weights.weight_file import WeightFile
from mlxr.runtime.weights.weights_digest import weights_digest

Bytes = npt.NDArray[np.uint8]
Write = Callable[[int, Bytes], None]
"""Writes bytes from a place of the file on. Several threads may call it."""
PAGE_BYTES = 16 << 10
"""Bytes of a page, at most: other systems have smaller ones, of which that is a multiple."""
_MAGIC = b"mlxr panels 1\n"
_SAMPLE_BYTES = 4096
_ROOM_BYTES = 256 << 20
"""What stays free on a disk."""


class PanelFileError(HostError):
    """A file that cannot be made here. The weights can still be packed into memory."""


@dataclass(frozen=True)
class PanelFile:
    """The file of one program's panels of one weight file.

    Attributes:
        name: of the model.
        tensors: those that are packed, in the program's order.
        packing: see `CLibrary`.
        weights: the file that they come from.
    """

    name: str
    tensors: tuple[CTensor, ...]
    packing: str
    weights: WeightFile

    @classmethod
    def of(cls, name: str, tensors: Sequence[CTensor], packing: str, weights: WeightFile) -> "PanelFile | None":
        """The file of the packed ones of a program's tensors; None: there are none."""
        packed = tuple(tensor for tensor in tensors if tensor.layout == "packed")
        return cls(name, packed, packing, weights) if packed else None

    @cached_property
    def path(self) -> Path:
        """Where it is, or will be.

        Raises:
            MlxrError: there is no place for the cache.
            WeightsError: the weight file cannot be read.
        """
        return cache_folder(PACKED_FOLDER) / f"{self._stem}-{self._identity}.panels"

    @cached_property
    def offsets(self) -> dict[CTensor, int]:
        """Where each tensor begins."""
        offsets, end = {}, PAGE_BYTES
        for tensor in self.tensors:
            offsets[tensor] = end
            end += whole_pages(tensor.size_bytes)
        return offsets

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return PAGE_BYTES + sum(whole_pages(tensor.size_bytes) for tensor in self.tensors)

    def open(self) -> tuple[mmap.mmap, Bytes] | None:
        """The file, mapped, and its bytes; None: it is not there, or it is damaged or of weights that have changed."""
        try:
            if not any(cache_folder(PACKED_FOLDER).glob(f"{self._stem}-*.panels")):
                return None  # the identity is not needed, for which samples of all weights are read
            with self.path.open("rb") as stream:
                if os.fstat(stream.fileno()).st_size != self.size_bytes:
                    return None
                block = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, MlxrError):
            return None
        content = np.frombuffer(block, np.uint8)
        return (block, content) if content[:PAGE_BYTES].tobytes() == self._head(content) else None

    def make(self, fill: Callable[[Write], None]) -> tuple[mmap.mmap, Bytes]:
        """Makes the file, unless another process has made it meanwhile, and maps it.

        Args:
            fill: writes all tensors.

        Raises:
            PanelFileError: the disk is full, or the folder cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with undone_at_signals(), _new_file(self.path.parent / f".new-{self._identity}") as (path, descriptor):
                if (opened := self.open()) is None:
                    self._write(path, descriptor, fill)
                    opened = self.open()
        except (OSError, MlxrError) as error:
            if isinstance(error, MlxrError) and not isinstance(error, PanelFileError):
                raise
            why = str(error)
            if isinstance(error, OSError):
                why = f"{error.strerror or error} ({error.filename or self.path.parent})"
            raise PanelFileError(f"packed weights cannot be kept on disk: {why}") from error
        if opened is None:
            raise PanelFileError(f"packed weights cannot be kept on disk: {self.path} does not keep what is written")
        return opened

    def _write(self, path: Path, descriptor: int, fill: Callable[[Write], None]) -> None:
        free = shutil.disk_usage(path.parent).free
        if self.size_bytes + _ROOM_BYTES > free:
            raise PanelFileError(
                f"they take {size(self.size_bytes)}, and {path.parent} has {size(free)} free: remove what you do not "
                "need (mlxr cache clear), or set MLXR_CACHE_DIR to a folder on another disk"
            )
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, self.size_bytes)

        def write(offset: int, content: Bytes) -> None:
            view = content.data.cast("B")
            while view:
                count = os.pwrite(descriptor, view, offset)
                view, offset = view[count:], offset + count

        fill(write)
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as block:
            content = np.frombuffer(block, np.uint8)
            head = self._head(content)
            del content  # else the map could not be closed
        os.pwrite(descriptor, head, 0)
        os.fsync(descriptor)
        if not _is_at(path, descriptor):
            raise PanelFileError(f"{path} was removed while it was written")
        path.replace(self.path)

    @property
    def _stem(self) -> str:
        """The model's name, as a file may be called."""
        return re.sub(r"[^\w.-]+", "-", self.name)[:80] or "model"

    @cached_property
    def _identity(self) -> str:
        """128 bits of everything that decides the content."""
        parts = [_MAGIC.decode(), self.packing, weights_digest(self.weights)]
        parts += [tensor.model_dump_json() for tensor in self.tensors]
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _head(self, content: Bytes) -> bytes:
        """What the first page must be, if the file has this content."""
        samples = hashlib.blake2b(digest_size=16)
        for tensor, first in self.offsets.items():
            last = first + tensor.size_bytes
            for start, stop in ((first, min(first + _SAMPLE_BYTES, last)), (max(first, last - _SAMPLE_BYTES), last)):
                samples.update(content[start:stop].data)
        says: dict[str, Any] = {
            "identity": self._identity,
            "size_bytes": self.size_bytes,
            "weights_changed_ns": _changed_ns(self.weights),
            "samples": samples.hexdigest(),
        }
        text = json.dumps(says, sort_keys=True).encode()
        head = _MAGIC + text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"
        return head.ljust(PAGE_BYTES, b"\0")


def whole_pages(size_bytes: int) -> int:
    """A size rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _changed_ns(weights: WeightFile) -> str:
    """When the weight files were last changed, hashed: their names do not matter."""
    files = dict.fromkeys(plane.file for tensor in weights.tensors.values() for plane in tensor.stored)
    times = [file.stat().st_mtime_ns for file in files]
    return hashlib.sha256(repr(times).encode()).hexdigest()[:16]


@contextmanager
def _new_file(path: Path) -> Iterator[tuple[Path, int]]:
    """A file that only this process writes, until it is renamed or the context ends; waits while another one has it.

    The lock is one of the file itself, and ends with the process: what one that was killed has left is taken over.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_at(path, descriptor):  # the one that had it has renamed or removed it
                continue
            try:
                yield path, descriptor
            finally:
                if _is_at(path, descriptor):
                    path.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
