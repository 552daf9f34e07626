"""Weight formats: how the elements of a weight matrix lie in memory.

A format is a property of a tensor's storage. The op graph deals in numbers: a quantised weight's values there are f32.
A GGUF format keeps all parts of a block together. An MLX format keeps them in planes, which files hold as separate
tensors: packed numbers (a little-endian bit stream along each row), scales and, in affine formats, biases.

To add a format, add its line to `WeightFormat` and one file to each of templates/metal/formats and
templates/cpu/formats; a format in planes also needs its numbers in runtime/weights/decode_planes.py.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import product
from typing import Self

from mlxr.compiler.formats.dtypes import DType


@dataclass(frozen=True)
class Plane:
    """The part of every block that lies in one tensor.

    Attributes:
        name: `weight`, `scales` or `biases`, as in the names of MLX's tensors; empty if the format has one plane.
        block_bytes: bytes of a block in this plane.
        dtype: the type of its numbers; None where they are packed bits.
    """

    name: str
    block_bytes: int
    dtype: DType | None = None


@dataclass(frozen=True)
class Affine:
    """An element is `q * scale + bias`: `q` has `bits` bits, and `group` neighbours in a row share scale and bias."""

    bits: int
    group: int
    scale: DType
    """The type of scales and biases."""

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Packed numbers, scales and biases."""
        size = self.scale.size_bytes
        numbers = Plane("weight", self.bits * self.group // 8)
        return numbers, Plane("scales", size, self.scale), Plane("biases", size, self.scale)


AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS = (32, 64, 128)
_AFFINE = {
    f"affine{bits}_g{group}_{scale}": Affine(bits, group, scale)
    for bits, group, scale in product(AFFINE_BITS, AFFINE_GROUPS, (DType.F16, DType.BF16, DType.F32))
}


class WeightFormat(StrEnum):
    """A format, spelled as in specs and artifacts: those below, and affine{2,3,4,5,6,8}_g{32,64,128}_{f16,bf16,f32}.

    Each line says the name, the elements of a block (all of one row), and the bytes of a block or its planes.
    """

    F32 = "f32", 1, 4
    F16 = "f16", 1, 2
    BF16 = "bf16", 1, 2
    Q8_0 = "q8_0", 32, 34
    Q4_0 = "q4_0", 32, 18
    Q4_1 = "q4_1", 32, 20
    Q5_0 = "q5_0", 32, 22
    Q5_1 = "q5_1", 32, 24
    Q2_K = "q2_k", 256, 84
    Q3_K = "q3_k", 256, 110
    Q4_K = "q4_k", 256, 144
    Q5_K = "q5_k", 256, 176
    Q6_K = "q6_k", 256, 210
    IQ4_NL = "iq4_nl", 32, 18
    IQ4_XS = "iq4_xs", 256, 136
    MXFP4 = "mxfp4", 32, 17
    MXFP4_MLX = "mxfp4_mlx", 32, (Plane("weight", 16), Plane("scales", 1, DType.U8)), "mxfp4"
    vars().update({name.upper(): (name, a.group, a.planes, "affine", a) for name, a in _AFFINE.items()})

    _value_: str
    block_elements: int
    planes: tuple[Plane, ...]
    """In the order in which they lie in a kernel's buffer."""
    mlx_mode: str | None
    """The `mode` of MLX's quantisation that makes this format; None of formats that MLX has no planes for."""
    affine: Affine | None
    """The parameters of an affine format; None of others."""

    def __new__(
        cls,
        name: str,
        block_elements: int = 1,
        block: int | tuple[Plane, ...] = (),
        mlx_mode: str | None = None,
        affine: Affine | None = None,
    ) -> Self:
        """Makes a member of the line that describes it. The defaults are for `WeightFormat(name)`, a look-up."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.block_elements = block_elements
        member.planes = (Plane("", block),) if isinstance(block, int) else block
        member.mlx_mode, member.affine = mlx_mode, affine
        return member

    @property
    def is_quantised(self) -> bool:
        """Whether the elements of a block share a scale."""
        return self.block_elements > 1

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block, all its planes together."""
        return sum(plane.block_bytes for plane in self.planes)

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

    @property
    def template(self) -> str:
        """Name, without its ending, of the format's file in each of templates/*/formats; affine formats share one."""
        return "affine" if self.affine else str(self)

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row, all its planes together. `columns` is a multiple of the block."""
        return columns // self.block_elements * self.block_bytes
