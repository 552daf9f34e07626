"""The bytes of a weight file's tensors, mapped into memory: nothing is read before it is looked at.

Pages of a mapped file belong to the system's cache: several processes share them, and the system takes them back when
memory is short. While a file is mapped it must not be overwritten or cut short; replacing it by another is fine.
"""

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.weight_file import TensorInfo, WeightFile, quoted

Bytes = npt.NDArray[np.uint8]


class MappedWeights:
    """A weight file whose tensors can be seen as bytes. Its arrays keep the mapping alive."""

    def __init__(self, file: WeightFile) -> None:
        self.file = file
        self._maps: dict[Path, tuple[mmap.mmap, Bytes]] = {}

    def rows(self, name: str) -> Bytes:
        """A tensor's bytes: [rows, bytes of a row], read-only. Of a vector, an element is a row; if quantised, all.

        Raises:
            WeightsError: the file cannot be mapped, or is shorter than it was when it was opened.
        """
        info = self.file.tensors[name]
        whole = self._map(info)[1]
        found = whole[info.offset : info.offset + info.size_bytes]
        if found.size != info.size_bytes:
            raise WeightsError(f"{info.file}: ends within tensor {quoted(name)}; it was cut short since it was opened")
        is_one_row = len(info.shape) == 1 and info.element_type.block_elements > 1
        return found.reshape(1 if is_one_row else info.shape[0], -1)

    def forget(self, name: str, first: int, last: int) -> None:
        """Says that rows [first, last) of a tensor will not be needed soon: their pages count no longer as ours."""
        info = self.file.tensors[name]
        row_bytes = info.size_bytes // max(1, info.shape[0])
        self.forget_bytes(name, first * row_bytes, last * row_bytes)

    def forget_bytes(self, name: str, first: int, last: int) -> None:
        """Says so of bytes [first, last) of a tensor."""
        info = self.file.tensors[name]
        block, _ = self._map(info)
        start = -(-(info.offset + first) // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (info.offset + last) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start and hasattr(mmap, "MADV_DONTNEED"):
            block.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def _map(self, info: TensorInfo) -> tuple[mmap.mmap, Bytes]:
        if info.file not in self._maps:
            try:
                with info.file.open("rb") as stream:
                    block = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise WeightsError(f"{info.file}: cannot be mapped: {error}") from error
            self._maps[info.file] = (block, np.frombuffer(block, np.uint8))
        return self._maps[info.file]
