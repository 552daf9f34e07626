"""Attention to rows of latents, which are keys and values of all heads."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import LATENTS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.latent import LatentAttention
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernel_parts.latent_kernel import LatentKernel, quads_of_lane
from mlxr.compiler.targets.metal.kernel_parts.latent_row import LatentRow
from mlxr.compiler.targets.metal.lowering import MetalLowering

SIMDGROUPS = 8
"""Simdgroups of a threadgroup."""
_MOST_QUADS = 40
"""The most vectors of 4 elements of queries and values that a lane keeps in registers."""
_MOST_HEADS = 4


@dataclass(frozen=True)
class AttendLatentKernel(LatentKernel):
    """Attention of the query heads of a token to the rows of its sequence.

    Attributes:
        num_heads: query heads.
        kv_rank: elements of a row that are the value.
        heads: query heads of a simdgroup.
        groups: simdgroups of a threadgroup with heads of their own.
        shares: simdgroups that share the keys of the same heads.
        row: how the new token's row is made, with partitions; None: it is in the arena already.
        partition, max_partitions: see `AttendKernel`.
    """

    template = "attend_latent.metal.jinja"
    num_heads: int
    kv_rank: int
    heads: int
    groups: int
    shares: int
    row: LatentRow | None = None
    partition: int = 0
    max_partitions: int = 0

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The queries, what makes the new row, tiles, positions, tables, the layer, and the arena."""
        tiles: tuple[Port, ...] = (("query_tiles", DType.I32),) if self.tiled else ()
        tables: tuple[Port, ...] = (("block_tables", DType.I32),) if self.arena.mode == "paged" else ()
        places = (*tiles, ("positions", DType.I32), *tables, ("layer", DType.U32))
        made: tuple[Port, ...] = (("kv", self.row.activation), *self.row.places) if self.row else ()
        return (("q", self.activation), *made, *places, (LATENTS, self.cache), ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The results of the heads, or those of each partition, and the token."""
        results: tuple[Port, ...] = (("out", self.activation),)
        if self.split:
            results = (("partial", DType.F32), ("stats", DType.F32))
        return (*results, ("token_out", DType.U32))

    @property
    def tiled(self) -> bool:
        """Whether the token's sequence stands in a table of tiles; partitions are of decode: a token a sequence."""
        return not self.split

    @property
    def tile(self) -> int:
        """Query tokens of a threadgroup."""
        return 1

    @property
    def window(self) -> None:
        """A query sees all tokens before it."""
        return None

    @property
    def chunked(self) -> bool:
        """Chunks are windows, of which there are none."""
        return False

    @property
    def split(self) -> bool:
        """Whether the context is split into partitions."""
        return self.partition > 0

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.groups * self.shares * SIMD_WIDTH

    @property
    def value_quads(self) -> int:
        """Those that have elements of the value."""
        return quads_of_lane(self.kv_rank)

    @property
    def threadgroup_heads(self) -> int:
        """Query heads of a threadgroup."""
        return self.heads * self.groups

    @property
    def head_groups(self) -> int:
        """Threadgroups of a token."""
        return -(-self.num_heads // self.threadgroup_heads)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the new row; where simdgroups share keys, their maxima and sums, and one head's values of each."""
        shared = self.groups * self.shares * (2 * self.heads + self.kv_rank) if self.shares > 1 else 0
        return 4 * (shared + (self.row_dim if self.row else 0))


def attend_kernel(lowering: MetalLowering, op: Op, attrs: LatentAttention) -> AttendLatentKernel:
    """The kernel in which each simdgroup has heads of its own."""
    quads = quads_of_lane(attrs.row_dim) + quads_of_lane(attrs.kv_rank)
    heads = max(1, min(_MOST_HEADS, attrs.num_heads, _MOST_QUADS // quads))
    return AttendLatentKernel(
        "attend_latent_prefill",
        arena=lowering.cache_of(op),
        num_heads=attrs.num_heads,
        kv_rank=attrs.kv_rank,
        activation=lowering.value(op, "q").dtype,
        scale=attrs.scale,
        temperature=attrs.temperature,
        heads=heads,
        groups=max(1, min(SIMDGROUPS, -(-attrs.num_heads // heads))),
        shares=1,
    )
