"""The base of the kernels that compute the gated delta rule by chunks of tokens, with MMA."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.ops.gated_delta import DeltaHeads
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.columns import Columns
from mlxr.compiler.targets.metal.kernel_parts.delta_kernel import DeltaKernel
from mlxr.compiler.targets.metal.kernel_parts.kernel import MMA_ROWS, SIMD_WIDTH

CHUNK = 64
"""Tokens of a chunk."""
BETWEEN = (("corrections", DType.U32, CHUNK), ("answers", DType.U32, CHUNK), ("factors", DType.F32, 4))
"""The buffers between the kernels: name, element type, and numbers of a head and a token."""
_BLOCK = 64
"""Elements of a key that a simdgroup's lanes read together, and of which they have neighbouring pairs."""
_VECTOR = 8
"""Elements of 16 bytes."""


def has_chunks(heads: DeltaHeads, columns: dict[str, Columns]) -> bool:
    """Whether the kernels can do the work: one decay a head, bf16 numbers, and sizes that fill simdgroups."""
    if heads.per_channel or heads.key_dim % _BLOCK or heads.value_dim % MMA_ROWS:
        return False
    aligned = all(not (columns[port].width % _VECTOR or columns[port].first % _VECTOR) for port in "qkv")
    return aligned and all(columns[port].dtype is DType.BF16 for port in "qkv")


@dataclass(frozen=True)
class DeltaChunkKernel(DeltaKernel):
    """Base of the two kernels.

    Attributes:
        places: by port of tokens, where its input has what is read of it.
    """

    places: tuple[tuple[str, Columns], ...]

    @property
    def columns(self) -> dict[str, Columns]:
        """Where inputs of tokens have what is read of them, by port."""
        return dict(self.places)

    @property
    def chunk(self) -> int:
        """Tokens of a chunk."""
        return CHUNK

    @property
    def tokens(self) -> tuple[Port, ...]:
        """The inputs of tokens, and their tables."""
        tables = (("query_start", DType.I32), ("state_table", DType.I32))
        return (*((port, columns.dtype) for port, columns in self.places), *tables)

    @property
    def between(self) -> tuple[Port, ...]:
        """The buffers between the kernels."""
        return tuple((name, dtype) for name, dtype, _ in BETWEEN)

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup: those of a chunk's rows."""
        return CHUNK // MMA_ROWS

    @property
    def threads(self) -> int:
        """Threads of a threadgroup."""
        return self.simdgroups * SIMD_WIDTH
