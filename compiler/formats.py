"""Weight formats: how the elements of a weight matrix lie in memory.

A format is a property of a tensor's storage. The op graph deals in numbers: a quantised weight's values there are f32.
Block sizes and bytes are those of GGUF.
"""

from enum import StrEnum

from mlxr.compiler.dtypes import DType


class WeightFormat(StrEnum):
    """A format, spelled as in specs and artifacts."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_K = "q4_k"
    Q5_K = "q5_k"
    Q6_K = "q6_k"

    @property
    def is_quantised(self) -> bool:
        """Whether elements share a scale by blocks."""
        return self.block_elements > 1

    @property
    def block_elements(self) -> int:
        """Elements of a block, all of one row."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return _BLOCKS[self][1]

    @property
    def dtype(self) -> DType:
        """The type of its numbers: its own, or f32, which holds every number of a quantised block."""
        return DType.F32 if self.is_quantised else DType(str(self))

    @property
    def gguf(self) -> str:
        """The type's name in GGUF files."""
        return self.upper()

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row. `columns` is a multiple of the block."""
        return columns // self.block_elements * self.block_bytes


_BLOCKS = {
    WeightFormat.F32: (1, 4),
    WeightFormat.F16: (1, 2),
    WeightFormat.BF16: (1, 2),
    WeightFormat.Q8_0: (32, 34),
    WeightFormat.Q4_0: (32, 18),
    WeightFormat.Q4_K: (256, 144),
    WeightFormat.Q5_K: (256, 176),
    WeightFormat.Q6_K: (256, 210),
}
