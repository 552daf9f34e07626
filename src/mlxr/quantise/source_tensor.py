"""Tensors that are to be written into another file: read in slabs of rows, and converted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from mlxr.compiler.errors import WeightsError
from mlxr.quantise.block_quantiser import BLOCK_FORMATS, Bytes, Floats, quantise_rows
from mlxr.quantise.gguf_output import GgufTensor
from mlxr.runtime.weights.element_types import decode, encode
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted

SLAB_ELEMENTS = 1 << 22
"""About how many numbers are in memory at once."""


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of a model, as rows.

    Attributes:
        name: in the file to be written.
        shape: outermost dimension first.
        format: how it lies where it comes from, in small letters; empty: in no way that can be copied.
        rows: reads rows [first, last): [rows, columns] f32, where all but the last dimension are rows.
        copied: reads all bytes as they lie; None: it cannot be copied.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    rows: Callable[[int, int], Floats]
    copied: Callable[[], Iterator[Bytes]] | None = None

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.shape[-1] if self.shape else 1

    @property
    def num_rows(self) -> int:
        """Rows, of all matrices together."""
        return prod(self.shape[:-1])

    def slabs(self) -> Iterator[tuple[int, Floats]]:
        """Its rows, some at a time and never of two matrices, and the number of the first of them."""
        each = self.shape[-2] if len(self.shape) > 1 else 1
        step = max(1, SLAB_ELEMENTS // max(1, self.columns))
        for matrix in range(0, self.num_rows, each):
            for first in range(matrix, matrix + each, step):
                yield first, self.rows(first, min(first + step, matrix + each))

    def written(self, format: str, importance: Floats | None = None, threads: int | None = None) -> GgufTensor:
        """The tensor in a format; importance is [matrices, columns]."""
        if format == self.format and self.copied is not None:
            return GgufTensor(self.name, self.shape, format, self.copied)
        return GgufTensor(self.name, self.shape, format, partial(self._converted, format, importance, threads))

    def _converted(self, format: str, importance: Floats | None, threads: int | None) -> Iterator[Bytes]:
        each = self.shape[-2] if len(self.shape) > 1 else 1
        for first, numbers in self.slabs():
            try:
                if format in BLOCK_FORMATS:
                    weights = None if importance is None else importance[first // each]
                    yield quantise_rows(numbers, format, weights, threads)
                else:
                    yield np.ascontiguousarray(encode(numbers, format)).view(np.uint8)
            except WeightsError as error:
                raise WeightsError(f"tensor {quoted(self.name)}: {error}") from error


def of_file(tensor: StoredTensor, name: str | None = None) -> SourceTensor:
    """A tensor as it is in a file."""
    return SourceTensor(
        name or tensor.name, tensor.shape, tensor.type.lower(), partial(_rows, tensor), partial(_bytes, tensor)
    )


def _rows(tensor: StoredTensor, first: int, last: int) -> Floats:
    size = tensor.element_type.size_bytes(tensor.shape[-1] if tensor.shape else 1)
    raw = _read(tensor.file, tensor.offset + first * size, (last - first) * size, tensor.name)
    try:
        return np.asarray(decode(raw.reshape(last - first, size), tensor.element_type), np.float32)
    except WeightsError as error:
        raise WeightsError(f"{tensor.file}: tensor {quoted(tensor.name)}: {error}") from error


def _bytes(tensor: StoredTensor) -> Iterator[Bytes]:
    step = 4 * SLAB_ELEMENTS
    for start in range(0, tensor.size_bytes, step):
        yield _read(tensor.file, tensor.offset + start, min(step, tensor.size_bytes - start), tensor.name)


def _read(file: Path, offset: int, size: int, name: str) -> Bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            data = np.frombuffer(stream.read(size), np.uint8)
    except OSError as error:
        raise WeightsError(f"{file}: cannot be read: {error.strerror or error}") from error
    if data.size != size:
        raise WeightsError(f"{file}: ends within tensor {quoted(name)}; it was cut short since it was opened")
    return data
