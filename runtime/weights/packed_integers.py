"""Matrices of packed integers with scales, as compressed-tensors writes them, read as planes of an affine format.

A file has the integers as a stream of bits along each row, which is how MLX packs its numbers too; a scale for each
group of columns or for each row; and, if 0 is not in the middle, which integer means 0, packed along the rows. An
element is (integer - zero) * scale, so the biases of the format are -zero * scale, which are made when they are read.
They have as few bits as the scales where zero is in the middle, a power of 2; else scales and biases are f32, which
holds them. So nothing is lost. Groups longer than those of the format are several with the same scale.

Source: https://github.com/vllm-project/compressed-tensors (compressors/pack_quantized), for the meaning of the bits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import WeightFormat, integer_format, plane_names
from mlxr.runtime.weights.element_types import decode, encode, safetensors_type
from mlxr.runtime.weights.stored_tensor import StoredTensor

if TYPE_CHECKING:
    from mlxr.runtime.weights.tensor_rows import TensorBytes

Bytes = npt.NDArray[np.uint8]
_ENDINGS = (".weight_packed", ".weight_scale", ".weight_zero_point")
_SHAPE = ".weight_shape"
"""The matrix's shape, as numbers; it follows from the other tensors."""


@dataclass(frozen=True)
class MadePlane(StoredTensor):
    """Scales or biases of an affine format, which are made of a file's scales.

    Attributes:
        of: the file's scales.
        zeros: the file's integers that mean 0; None: the middle one does.
        bits: of an integer.
        repeat: groups of the format for each of the file's.
        is_biases: whether these are biases.
    """

    of: StoredTensor | None = None
    zeros: StoredTensor | None = None
    bits: int = 0
    repeat: int = 1
    is_biases: bool = False

    def rows(self, source: "TensorBytes", rows: npt.NDArray[np.int64], groups: range) -> Bytes:
        """The bytes of some rows of some groups: [rows, bytes]."""
        assert self.of is not None, "they are made of scales"
        places = np.arange(groups.start, groups.stop) // self.repeat
        kind = self.of.element_type
        stored = source.rows(self.of).reshape(-1, self.of.shape[-1], kind.block_bytes)[rows][:, places]
        numbers = np.asarray(decode(np.ascontiguousarray(stored).reshape(len(rows), -1), kind), np.float32)
        if self.is_biases:
            numbers = numbers * -self._zeros(source, rows, places)
        return np.ascontiguousarray(encode(numbers, self.type.lower())).view(np.uint8)

    def _zeros(
        self, source: "TensorBytes", rows: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        if self.zeros is None:
            return np.full((1, 1), 1 << (self.bits - 1), np.float32)
        words = source.rows(self.zeros).reshape(-1).view("<u4").reshape(self.zeros.shape)
        return unpacked(words[:, groups], rows, self.bits).astype(np.float32)


def unpacked(words: npt.NDArray[np.uint32], places: npt.NDArray[np.int64], bits: int) -> npt.NDArray[Any]:
    """The integers at some places of streams of bits.

    Args:
        words: each column is a stream: [words, streams].
        places: numbers of integers.
        bits: of an integer.

    Returns:
        [places, streams], unsigned.
    """
    first, shift = places * bits // 32, (places * bits % 32)[:, None]
    if 32 % bits == 0:
        return words[first] >> shift.astype(np.uint32) & np.uint32((1 << bits) - 1)
    second = np.minimum(first + 1, len(words) - 1)
    both = words[first].astype(np.uint64) | words[second].astype(np.uint64) << np.uint64(32)
    return both >> shift.astype(np.uint64) & np.uint64((1 << bits) - 1)


def with_integers(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The tensors, with those of packed integers under the names of planes: `X.weight`, `X.scales`, `X.zeros`."""
    stems = [name.removesuffix(_ENDINGS[0]) for name in tensors if name.endswith(_ENDINGS[0])]
    stems = [stem for stem in stems if f"{stem}.weight" not in tensors]
    if not stems:
        return tensors
    renamed = dict(tensors)
    for stem in stems:
        names = plane_names(f"{stem}.weight")
        for ending, name in zip(_ENDINGS, (*names[:2], f"{stem}.zeros"), strict=True):
            if (tensor := renamed.pop(stem + ending, None)) is not None:
                renamed[name] = replace(tensor, name=name)
        renamed.pop(stem + _SHAPE, None)
    return renamed


def integer_planes(
    numbers: StoredTensor, scales: StoredTensor, zeros: StoredTensor | None, columns: int
) -> tuple[WeightFormat, tuple[StoredTensor, ...]] | None:
    """The format of packed integers that are a matrix of so many columns, and its planes; None if there is none."""
    rows, groups = math.prod(scales.shape[:-1]), scales.shape[-1] if scales.shape else 0
    if not groups or not columns or columns % groups or numbers.shape[:-1] != scales.shape[:-1]:
        return None
    bits, rest = divmod(numbers.size_bytes * 8, max(1, rows * columns))
    format = None if rest else integer_format(bits, columns // groups, scales.type, has_zeros=zeros is not None)
    if format is None or format.affine is None:
        return None
    if zeros is not None and (zeros.type != "I32" or zeros.shape != (-(-rows * bits // 32), groups)):
        return None
    repeat = columns // groups // format.block_elements
    kind = safetensors_type(format.affine.scale.upper())
    assert kind is not None, "a format's scales have a type of safetensors"
    shape = (*scales.shape[:-1], groups * repeat)
    biases = MadePlane(
        (zeros or scales).name, shape, kind, scales.file, scales.offset, None, scales, zeros, bits, repeat, True
    )
    is_stored = repeat == 1 and kind == scales.element_type
    own = scales if is_stored else replace(biases, name=scales.name, is_biases=False)
    return format, (numbers, own, biases)
