"""Weight formats: how the elements of a weight matrix lie in memory.

A format is a property of a tensor's storage. The op graph deals in numbers: a quantised weight's values there are f32.
The blocks of GGUF keep all that they have in one place. Those of MLX lie in planes, which files hold as tensors of
their own: numbers (a little-endian bit stream along each row), scales, and where there are any, biases.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import product

from mlxr.compiler.formats.dtypes import DType

_AFFINE = {
    f"affine{bits}_g{group}_{scale}": (bits, group, scale)
    for bits, group, scale in product((2, 3, 4, 5, 6, 8), (32, 64, 128), ("f16", "bf16", "f32"))
}


@dataclass(frozen=True)
class Plane:
    """One part of every block of a format, in a tensor of its own.

    Attributes:
        name: `weight`, `scales` or `biases`, as at the end of tensor names in files; empty if it is the only one.
        block_bytes: what a block has of it.
        dtype: the type of its numbers; None where they are packed bits.
    """

    name: str
    block_bytes: int
    dtype: DType | None = None


@dataclass(frozen=True)
class Affine:
    """A number of so many bits is `q * scale + bias`; `group` neighbours of a row share both, of type `scale`."""

    bits: int
    group: int
    scale: DType


class WeightFormat(StrEnum):
    """A format, spelled as in specs and artifacts: those below, and affine{2,3,4,5,6,8}_g{32,64,128}_{f16,bf16,f32}."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    Q2_K = "q2_k"
    Q3_K = "q3_k"
    Q4_K = "q4_k"
    Q5_K = "q5_k"
    Q6_K = "q6_k"
    IQ4_NL = "iq4_nl"
    IQ4_XS = "iq4_xs"
    MXFP4 = "mxfp4"
    MXFP4_MLX = "mxfp4_mlx"
    vars().update({name.upper(): name for name in _AFFINE})

    @property
    def is_quantised(self) -> bool:
        """Whether elements share a scale by blocks."""
        return self.block_elements > 1

    @property
    def block_elements(self) -> int:
        """Elements of a block, all of one row."""
        return self.affine.group if self.affine else _BLOCKS[self][0]

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block, all its planes together."""
        return sum(plane.block_bytes for plane in self.planes)

    @cached_property
    def planes(self) -> tuple[Plane, ...]:
        """What files hold in tensors of their own, in the order in which they lie where they are brought together."""
        if self.affine:
            size = self.affine.scale.size_bytes
            bits = Plane("weight", self.affine.bits * self.affine.group // 8)
            return bits, Plane("scales", size, self.affine.scale), Plane("biases", size, self.affine.scale)
        if self is WeightFormat.MXFP4_MLX:
            return Plane("weight", 16), Plane("scales", 1)
        return (Plane("", _BLOCKS[self][1]),)

    @cached_property
    def affine(self) -> Affine | None:
        """The parameters of an affine format; None of others."""
        if self not in _AFFINE:
            return None
        bits, group, scale = _AFFINE[self]
        return Affine(bits, group, DType(scale))

    @property
    def dtype(self) -> DType:
        """The type of its numbers: its own, or f32, which holds every number of a quantised block."""
        return DType.F32 if self.is_quantised else DType(str(self))

    @property
    def declared_float(self) -> DType | None:
        """The float type that its numbers or their scales have in files; None of GGUF's quantised formats."""
        if self.affine:
            return self.affine.scale
        return None if self.is_quantised else self.dtype

    @property
    def gguf(self) -> str | None:
        """The type's name in GGUF files; None if they do not know it."""
        return None if len(self.planes) > 1 else self.upper()

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row, all its planes together. `columns` is a multiple of the block."""
        return columns // self.block_elements * self.block_bytes


def affine_format(bits: int, group: int, scale: str) -> WeightFormat | None:
    """The affine format with these parameters, or None where there is none."""
    name = f"affine{bits}_g{group}_{scale}"
    return WeightFormat(name) if name in _AFFINE else None


_BLOCKS = {
    WeightFormat.F32: (1, 4),
    WeightFormat.F16: (1, 2),
    WeightFormat.BF16: (1, 2),
    WeightFormat.Q8_0: (32, 34),
    WeightFormat.Q4_0: (32, 18),
    WeightFormat.Q4_1: (32, 20),
    WeightFormat.Q5_0: (32, 22),
    WeightFormat.Q5_1: (32, 24),
    WeightFormat.Q2_K: (256, 84),
    WeightFormat.Q3_K: (256, 110),
    WeightFormat.Q4_K: (256, 144),
    WeightFormat.Q5_K: (256, 176),
    WeightFormat.Q6_K: (256, 210),
    WeightFormat.IQ4_NL: (32, 18),
    WeightFormat.IQ4_XS: (256, 136),
    WeightFormat.MXFP4: (32, 17),
    WeightFormat.MXFP4_MLX: (32, 17),
}
