"""Contexts of the kernels that prepare prefill attention by MLX: queries rotated, and a sequence's K and V in a row."""

from dataclasses import dataclass

from mlxr.compiler.codegen.arena_kernels import ArenaKernel, RopeKernel
from mlxr.compiler.codegen.kernels import SIMD_WIDTH, Port, round_up
from mlxr.compiler.dtypes import DType


@dataclass(frozen=True)
class RotateQueriesKernel(RopeKernel):
    """Queries rotated as attention kernels rotate them; not scaled, for MLX's attention scales them.

    Attributes:
        temperature: of queries, (beta, context).
    """

    template = "rotate_queries.metal.jinja"
    temperature: tuple[float, int] | None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Packed projection and positions."""
        return (("qkv", self.activation), ("positions", DType.I32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The queries."""
        return (("queries", self.activation),)

    @property
    def words(self) -> int:
        """Pairs of elements of a head: each is a thread's, which turns it by one angle in every head that it takes."""
        return self.head_dim // 2

    @property
    def heads_at_once(self) -> int:
        """Heads that a threadgroup rotates at once."""
        return max(1, min(self.num_heads, 256 // self.words))

    @property
    def threads(self) -> int:
        """One per word of these heads."""
        return round_up(self.words * self.heads_at_once, SIMD_WIDTH)


@dataclass(frozen=True)
class GatherContextKernel(ArenaKernel):
    """K and V of the batch's only sequence, copied out of the arena."""

    template = "gather_context.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Where the context is, and the arena."""
        table: tuple[Port, ...] = (("block_tables", DType.I32),) if self.arena.mode == "paged" else ()
        return (("context_lens", DType.I32), *table, ("layer", DType.U32), *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """K, V and the token."""
        return (("keys", self.cache), ("values", self.cache), ("token_out", DType.U32))

    @property
    def row_chunks(self) -> int:
        """Vectors of 16 bytes of a position's K or V."""
        return self.arena.num_kv_heads * self.arena.row_bytes // 16

    @property
    def positions(self) -> int:
        """Positions of a threadgroup: about four vectors a thread."""
        return max(1, 4 * self.threads // (2 * self.row_chunks))

    @property
    def threads(self) -> int:
        """Enough to fill a GPU with few threadgroups."""
        return 256
