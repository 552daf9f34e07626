"""A weight file (or several shards of one) as a list of tensors, each read on its own.

`safetensors_header` and `gguf_header` parse and check the headers. Reading is the same for both, since a tensor is a
range of bytes in a file and an element type. Invariants: listing reads no tensor data; every byte range is within its
file; a tensor is read in slabs of rows, so that reading needs little memory beyond its result.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mlxr.compiler.artifact import FileKind
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.element_types import Array, decode
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted

SLAB_ELEMENTS = 1 << 20
"""About how many elements are read and converted at once: small beside a model, large beside the cost of a call."""


@dataclass(frozen=True)
class WeightFile:
    """The tensors of a weight file. It has no open file and no data."""

    path: Path
    """What was opened: a file, or the index or folder of several."""
    format: FileKind
    tensors: Mapping[str, StoredTensor] = field(repr=False)
    """By name, in the order of the file."""
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What a GGUF file says of itself; empty for safetensors."""
    beside: Mapping[str, tuple[StoredTensor, ...]] = field(default_factory=dict, repr=False)
    """Tensors of other parts than the text model, which nobody reads, by what they are for: `images`, `sound`,
    `guesses`, `indexers`."""

    def read(self, name: str) -> Array:
        """The whole tensor, in NumPy's own type if it has one, else (bf16, quantised) in float32.

        Raises:
            WeightsError: there is no such tensor, its type or the file cannot be read, or its numbers have scales, with
                which only `TensorRows` reads them.
        """
        info = self._find(name)
        result: Array | None = None
        for start, rows in self.slabs(name):
            if result is None:
                result = np.empty(info.shape, rows.dtype)
            if info.shape:
                result[start : start + len(rows)] = rows
            else:
                result[...] = rows[0]
        return np.empty(info.shape, np.float32) if result is None else result

    def slabs(self, name: str, row_multiple: int = 1) -> Iterator[tuple[int, Array]]:
        """Reads a tensor in slabs of whole rows (axis 0); each but the last is a multiple of `row_multiple` rows.

        Yields:
            The first row's index and [rows, ...the other dimensions]; a scalar is one row of no dimensions.

        Raises:
            WeightsError: as `read`.
        """
        info = self._find(name)
        if info.scales is not None:
            raise WeightsError(
                f"{info.file}: tensor {quoted(name)}: has scales ({info.scales.name}), which are not applied here"
            )
        if not info.num_elements:
            return
        rows, row_shape = (info.shape[0], info.shape[1:]) if info.shape else (1, ())
        block = info.element_type
        if not row_shape and block.block_elements > 1:  # a quantised vector: its blocks span rows
            yield 0, self._read_rows(info, 0, 1, info.size_bytes).reshape(info.shape)
            return
        row_elements = prod(row_shape)
        row_bytes = block.size_bytes(row_elements)
        step = max(1, SLAB_ELEMENTS // row_elements // row_multiple) * row_multiple
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            numbers = self._read_rows(info, start, stop, row_bytes)
            yield start, numbers.reshape(stop - start, *row_shape)

    def _find(self, name: str) -> StoredTensor:
        if name not in self.tensors:
            raise WeightsError(f"{self.path}: holds no tensor {quoted(name)}")
        return self.tensors[name]

    def _read_rows(self, info: StoredTensor, start: int, stop: int, row_bytes: int) -> Array:
        raw = np.empty((stop - start, row_bytes), np.uint8)
        try:
            with info.file.open("rb", buffering=0) as stream:
                stream.seek(info.offset + start * row_bytes)
                view, filled = memoryview(raw.data).cast("B"), 0
                while filled < raw.nbytes and (count := stream.readinto(view[filled:])):
                    filled += count
        except OSError as error:
            raise WeightsError(f"{info.file}: cannot be read: {error.strerror or error}") from error
        if filled < raw.nbytes:
            raise WeightsError(
                f"{info.file}: ends within tensor {quoted(info.name)}; it was cut short since it was opened"
            )
        try:
            return decode(raw, info.element_type)
        except WeightsError as error:
            raise WeightsError(f"{info.file}: tensor {quoted(info.name)}: {error}") from error
