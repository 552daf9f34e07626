"""Weights in arrays instead of files, for host cpu."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Recipe, TensorSource, WeightFormat
from mlxr.runtime.weights.element_types import ElementType
from mlxr.runtime.weights.stored_tensor import StoredTensor
from mlxr.runtime.weights.tensor_rows import Bytes, TensorRows

_FLOATS = {"float32": "f32", "float16": "f16", "uint16": "bf16"}


class _ArrayBytes:
    """The planes of one tensor; each starts at its `offset` in a row of the array."""

    def __init__(self, rows: Bytes) -> None:
        self._rows = rows

    def rows(self, tensor: StoredTensor) -> Bytes:
        """See `TensorBytes`. Returns a copy if there are several planes."""
        size = tensor.shape[1]
        return np.ascontiguousarray(self._rows[:, tensor.offset : tensor.offset + size])

    def forget(self, tensor: StoredTensor, first: int, last: int) -> None:
        """See `TensorBytes`."""

    def count(self, size_bytes: int) -> None:
        """See `TensorBytes`."""


def read_memory(arrays: Mapping[str, npt.NDArray[Any]]) -> Callable[[TensorSource], TensorRows]:
    """Finds tensors by their canonical names: f32, f16, bf16 as uint16, or uint8 rows of the part's own format.

    The planes of a row are adjacent.
    """

    def read(part: TensorSource) -> TensorRows:
        array = np.ascontiguousarray(arrays[part.name])
        format = part.format if array.dtype == np.uint8 else WeightFormat(_FLOATS[str(array.dtype)])
        assert format.is_quantised or array.shape == part.shape, f"{part.name}: {array.shape}, expected {part.shape}"
        rows = array.view(np.uint8).reshape(len(array), -1)
        blocks = rows.shape[1] // format.block_bytes
        planes, offset = [], 0
        for plane in format.planes:
            name = str(format).upper() if len(format.planes) == 1 else "U8"
            kind = ElementType(name, format.block_elements, plane.block_bytes)
            planes.append(StoredTensor(part.name, (len(rows), blocks * plane.block_bytes), kind, Path(), offset))
            offset += blocks * plane.block_bytes
        return TensorRows(
            part.name, part.name, part.shape, str(format), (tuple(planes),), Recipe(part.name), _ArrayBytes(rows)
        )

    return read
