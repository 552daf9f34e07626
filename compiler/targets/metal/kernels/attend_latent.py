"""Attention to rows of latents, which are keys and values of all heads."""

from dataclasses import dataclass, replace

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import LATENTS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.latent import LatentAttention
from mlxr.compiler.ir.ops.rope import Temperature
from mlxr.compiler.schedule.geometry import AttendPartition
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import ArenaKernel, arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernels.attend_reduce import AttendReduceKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers
from mlxr.compiler.targets.scores import query_scale

_SIMDGROUPS = 8
_MOST_QUADS = 40
"""The most vectors of 4 elements of queries and values that a lane keeps in registers."""
_MOST_HEADS = 4


@dataclass(frozen=True)
class AttendLatentKernel(ArenaKernel):
    """Attention of the query heads of a token to the rows of its sequence.

    Attributes:
        num_heads: query heads.
        kv_rank: elements of a row that are the value.
        activation: element type of queries and results.
        scale: factor of the scores.
        temperature: see `AttentionKernel`.
        tiled: whether the token's sequence stands in a table of tiles; else tokens are numbered as sequences.
        heads: query heads of a simdgroup.
        groups: simdgroups of a threadgroup with heads of their own.
        shares: simdgroups that share the keys of the same heads.
        partition, max_partitions: see `AttendKernel`.
    """

    template = "attend_latent.metal.jinja"
    num_heads: int
    kv_rank: int
    activation: DType
    scale: float
    temperature: Temperature | None
    tiled: bool
    heads: int
    groups: int
    shares: int
    partition: int = 0
    max_partitions: int = 0

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The queries, tiles, positions, tables, the layer, and the arena."""
        tiles: tuple[Port, ...] = (("query_tiles", DType.I32),) if self.tiled else ()
        tables: tuple[Port, ...] = (("block_tables", DType.I32),) if self.arena.mode == "paged" else ()
        places = (*tiles, ("positions", DType.I32), *tables, ("layer", DType.U32))
        return (("q", self.activation), *places, (LATENTS, self.cache), ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The results of the heads, or those of each partition, and the token."""
        results: tuple[Port, ...] = (("out", self.activation),)
        if self.split:
            results = (("partial", DType.F32), ("stats", DType.F32))
        return (*results, ("token_out", DType.U32))

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
    def row_dim(self) -> int:
        """Elements of a row, and of a query."""
        return self.arena.head_dim

    @property
    def quads(self) -> int:
        """Vectors of 4 elements of a row that a lane holds, the last one perhaps past its end."""
        return -(-self.row_dim // (4 * SIMD_WIDTH))

    @property
    def value_quads(self) -> int:
        """Those that have elements of the value."""
        return -(-self.kv_rank // (4 * SIMD_WIDTH))

    @property
    def unroll(self) -> int:
        """Keys that a simdgroup loads and scores at once."""
        return 2

    @property
    def query_scale(self) -> float:
        """Factor of the queries: it makes scores ready for exp2."""
        return query_scale(self.scale, None)

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
        """Bytes of the simdgroups' maxima and sums, and of one head's values of each, where they share keys."""
        return 0 if self.shares == 1 else 4 * self.groups * self.shares * (2 * self.heads + self.kv_rank)


@lowers(LatentAttention)
def lower_latent_attention(lowering: MetalLowering, op: Op, attrs: LatentAttention) -> None:
    """Adds the launch of a kernel; in decode of long contexts another one, and a launch that merges its parts.

    A deterministic program has the same kernel for all steps.
    """
    arena = lowering.cache_of(op)
    quads = -(-attrs.row_dim // (4 * SIMD_WIDTH)) + -(-attrs.kv_rank // (4 * SIMD_WIDTH))
    heads = max(1, min(_MOST_HEADS, attrs.num_heads, _MOST_QUADS // quads))
    groups = max(1, min(_SIMDGROUPS, -(-attrs.num_heads // heads)))
    whole = AttendLatentKernel(
        "attend_latent",
        arena=arena,
        num_heads=attrs.num_heads,
        kv_rank=attrs.kv_rank,
        activation=lowering.value(op, "q").dtype,
        scale=attrs.scale,
        temperature=attrs.temperature,
        tiled="query_tiles" in op.inputs,
        heads=heads,
        groups=groups,
        shares=1,
    )
    if lowering.phase == "prefill" or lowering.deterministic:
        whole = replace(whole, label="attend_latent_prefill")
        rows = Extent(dim="tiles" if whole.tiled else "tokens")
        buffers = arena_buffers(lowering, op) | {"out": op.out}
        lowering.emit(op, whole, (Extent(times=whole.head_groups), rows), buffers)
        return
    _lower_decode(lowering, op, replace(whole, groups=min(2, groups), shares=_SIMDGROUPS // 2))


def _lower_decode(lowering: MetalLowering, op: Op, whole: AttendLatentKernel) -> None:
    choice = lowering.table.choose(Site.of_arena("attend", whole.arena))
    g = choice.geometry.decode_attention
    context, buffers = lowering.arena.context, arena_buffers(lowering, op) | {"out": op.out}
    longest = g.whole.max_context or g.partition.length
    grid = (Extent(times=whole.head_groups), Extent(dim="seqs"))
    short = None if context <= longest else Condition(dim="context", maximum=longest)
    lowering.emit(op, whole, grid, buffers, when=short)
    if context <= longest:
        return
    most = min(g.partition.most, -(-context // g.partition.length))
    part = replace(whole, label="attend_latent_part", partition=g.partition.length, max_partitions=most)
    partial = {"partial": f"{op.name}.partial", "stats": f"{op.name}.stats"}
    shape = ("seqs", part.num_heads, most)
    lowering.scratch.append(Scratch(partial["partial"], (*shape, part.kv_rank), DType.F32))
    lowering.scratch.append(Scratch(partial["stats"], (*shape, 4), DType.F32))
    long = Condition(dim="context", minimum=longest + 1)
    lowering.emit(op, part, (*grid, Extent(times=most)), buffers | partial, when=long)
    reduce = AttendReduceKernel(
        "attend_reduce",
        num_heads=part.num_heads,
        head_dim=part.kv_rank,
        partition=part.partition,
        max_partitions=most,
        window=None,
        chunked=False,
        activation=part.activation,
        sinks=None,
    )
    merged = (Extent(times=part.num_heads), Extent(dim="seqs"))
    lowering.emit(op, reduce, merged, partial | {"out": op.out}, when=long, chosen=choice.sizes(AttendPartition))
