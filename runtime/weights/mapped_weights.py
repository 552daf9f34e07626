"""Maps the tensors of a weight file into memory: bytes are read from disk when they are first used.

Pages of a mapped file belong to the system's cache: several processes share them, and the system takes them back when
memory is short. A file that is mapped must not be overwritten or shortened; it may be replaced by another file.
"""

import mmap
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import plane_names
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted
from mlxr.runtime.weights.weight_file import WeightFile

Bytes = npt.NDArray[np.uint8]
_SLAB_BYTES = 1 << 24


class MappedWeights:
    """A weight file whose tensors can be seen as bytes. Its arrays keep the mapping alive."""

    def __init__(self, file: WeightFile) -> None:
        self.file = file
        self._maps: dict[Path, tuple[mmap.mmap, Bytes]] = {}
        self._lock = threading.Lock()
        self._read_bytes = 0

    @property
    def read_bytes(self) -> int:
        """Bytes of tensors that were read so far, or are used in place."""
        return self._read_bytes

    def count(self, size_bytes: int) -> None:
        """Adds to `read_bytes`. Several threads may call it."""
        with self._lock:
            self._read_bytes += size_bytes

    def rows(self, tensor: StoredTensor) -> Bytes:
        """A tensor's bytes: [rows, bytes of a row], read-only. A vector has a row per element, or one if quantised.

        Raises:
            WeightsError: the file cannot be mapped, or is shorter than it was when it was opened.
        """
        content = self._map(tensor)[1][tensor.offset : tensor.offset + tensor.size_bytes]
        if content.size != tensor.size_bytes:
            raise WeightsError(
                f"{tensor.file}: ends within tensor {quoted(tensor.name)}; it was cut short since it was opened"
            )
        is_one_row = len(tensor.shape) == 1 and tensor.element_type.block_elements > 1
        return content.reshape(1 if is_one_row or not tensor.shape else tensor.shape[0], -1)

    def forget(self, tensor: StoredTensor, first: int, last: int) -> None:
        """Releases the pages of bytes [first, last) of a tensor, which will not be needed soon."""
        block, _ = self._map(tensor)
        start = -(-(tensor.offset + first) // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (tensor.offset + last) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start and hasattr(mmap, "MADV_DONTNEED"):
            block.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def _map(self, tensor: StoredTensor) -> tuple[mmap.mmap, Bytes]:
        if tensor.file not in self._maps:
            try:
                with tensor.file.open("rb") as stream:
                    block = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise WeightsError(f"{tensor.file}: cannot be mapped: {error}") from error
            self._maps[tensor.file] = (block, np.frombuffer(block, np.uint8))
        return self._maps[tensor.file]


def same_numbers(file: WeightFile, first: str, second: str) -> bool:
    """Compares two matrices byte by byte, with their scales and biases, up to the first difference.

    Raises:
        WeightsError: the file cannot be mapped.
    """
    names = [(*plane_names(name), f"{name.removesuffix('.weight')}.zeros") for name in (first, second)]
    planes = zip(*names, strict=True)
    return all(_same(file, *names) for names in planes if any(name in file.tensors for name in names))


def _same(file: WeightFile, first: str, second: str) -> bool:
    tensors = file.tensors.get(first), file.tensors.get(second)
    shapes = [(tensor.shape, tensor.type) for tensor in tensors if tensor is not None and tensor.scales is None]
    if len(shapes) < 2 or shapes[0] != shapes[1]:
        return False
    mapped = MappedWeights(file)
    ours, theirs = (mapped.rows(file.tensors[name]).reshape(-1) for name in (first, second))
    starts = range(0, ours.size, _SLAB_BYTES)
    return all(np.array_equal(ours[at : at + _SLAB_BYTES], theirs[at : at + _SLAB_BYTES]) for at in starts)
