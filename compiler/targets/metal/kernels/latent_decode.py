"""Latent attention of a decode step: one launch, or of long contexts several."""

from dataclasses import dataclass, replace

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import LATENTS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.latent_decode import LatentDecode
from mlxr.compiler.ir.tensor import Tensor
from mlxr.compiler.schedule.geometry import AttendPartition, AttendWhole, DecodeAttention
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, THREADGROUP_BYTES
from mlxr.compiler.targets.metal.kernel_parts.latent_kernel import LatentKernel, quads_of_lane
from mlxr.compiler.targets.metal.kernel_parts.latent_row import LatentRow, latent_row
from mlxr.compiler.targets.metal.kernels.attend_latent import SIMDGROUPS, attend_kernel
from mlxr.compiler.targets.metal.kernels.head_product import HeadProductKernel, heads_kernel, launch_heads
from mlxr.compiler.targets.metal.kernels.latent_reduce import LatentReduceKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers

_OUTPUTS = 8
"""Rows of a head's matrix that a simdgroup takes at once: few threadgroups read it, each with many loads in flight."""
_MERGING = 16
"""Simdgroups of a threadgroup that merges partitions: a thread for each element of a latent of 512."""
_MANY_HEADS = 2
"""Query heads of a threadgroup where sequences alone fill the GPU."""


@dataclass(frozen=True)
class LatentDecodeKernel(LatentKernel):
    """All of latent attention between its projections.

    Attributes:
        row: how the new token's row is made.
        queries, products: the products of heads before and after attention; simdgroups of a threadgroup share them.
        heads: query heads of a threadgroup.
        simdgroups: simdgroups of a threadgroup, which share its keys.
    """

    template = "latent_decode.metal.jinja"
    row: LatentRow
    queries: HeadProductKernel
    products: HeadProductKernel
    heads: int
    simdgroups: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Queries and rows, the matrices, positions, slots, tables, the layer, and the arena."""
        x = (("q", self.activation), ("kv", self.row.activation), *self.row.places)
        matrices = (("k_b", self.queries.layout.dtype), ("v_b", self.products.layout.dtype))
        tables: tuple[Port, ...] = (("block_tables", DType.I32),) if self.arena.mode == "paged" else ()
        places = (("positions", DType.I32), *tables, ("layer", DType.U32))
        return (*x, *matrices, *places, (LATENTS, self.cache), ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The results of the heads, and the token."""
        return (("out", self.activation), ("token_out", DType.U32))

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.queries.heads.num_heads

    @property
    def kv_rank(self) -> int:
        """Elements of a row that are the value."""
        return self.row.kv_rank

    @property
    def value_quads(self) -> int:
        """Those that have elements of the value."""
        return quads_of_lane(self.kv_rank)

    @property
    def head_groups(self) -> int:
        """Threadgroups of a sequence."""
        return -(-self.num_heads // self.heads)

    @property
    def halves(self) -> tuple[tuple[int, int], ...]:
        """The steps by which simdgroups add up their sums: those that have some, and those that have some after it."""
        steps, active = [], self.simdgroups
        while active > 1:
            steps.append((active, -(-active // 2)))
            active = steps[-1][1]
        return tuple(steps)

    @property
    def matrix_table(self) -> str:
        """The lines on the matrices, for the head of the kernel."""
        rows = [*self.queries.rows_of("k_b"), *self.products.rows_of("v_b")]
        return "".join(f"//   {row}\n" for row in rows)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the new row, the queries, the simdgroups' maxima and sums, half of their values, and a result."""
        state = 2 * self.simdgroups * self.heads + self.simdgroups // 2 * self.kv_rank if self.simdgroups > 1 else 0
        return 4 * ((1 + self.heads) * self.row_dim + state + self.kv_rank)


@lowers(LatentDecode)
def lower_latent_decode(lowering: MetalLowering, op: Op, attrs: LatentDecode) -> None:
    """Adds the launch of a kernel, one more for many sequences, and several for long contexts.

    Short contexts need one launch. Those of many sequences have threadgroups enough, so that several heads share reads.
    """
    choice = lowering.table.choose(Site.of_arena("attend", lowering.cache_of(op)))
    g = choice.geometry.decode_attention
    whole = _kernel(lowering, op, attrs, g.whole.heads or 1, g.whole.simdgroups)
    few: Condition | None = None
    if 0 < g.many.min_sequences <= lowering.arena.max_sequences:
        many = _kernel(lowering, op, attrs, _MANY_HEADS, g.many.simdgroups)
        _launch(lowering, op, many, Condition(dim="seqs", minimum=g.many.min_sequences), choice)
        few = Condition(dim="seqs", maximum=g.many.min_sequences - 1)
    longest = g.whole.max_context or g.partition.length
    if lowering.arena.context <= longest:
        _launch(lowering, op, whole, few, choice)
        return
    _launch(lowering, op, whole, Condition(dim="context", maximum=longest, also=few), choice)
    _lower_long(lowering, op, attrs, Condition(dim="context", minimum=longest + 1, also=few), choice)


def _kernel(lowering: MetalLowering, op: Op, attrs: LatentDecode, heads: int, simdgroups: int) -> LatentDecodeKernel:
    """The kernel, with as many of these heads and simdgroups as threadgroup memory has room for."""
    q = lowering.value(op, "q")
    queries = heads_kernel(lowering, op, attrs.queries, op.inputs["k_b"], q.tensor)
    kernel = LatentDecodeKernel(
        "latent_decode",
        arena=lowering.cache_of(op),
        activation=q.dtype,
        row=latent_row(lowering, op, attrs.write, "kv"),
        queries=replace(queries, outs=_OUTPUTS, simdgroups=1),
        products=_products(lowering, op, attrs),
        scale=attrs.scale,
        temperature=attrs.temperature,
        heads=min(heads, attrs.num_heads, _MANY_HEADS),
        simdgroups=simdgroups,
    )
    while kernel.threadgroup_bytes > THREADGROUP_BYTES:
        simdgroups = kernel.simdgroups // 2 if kernel.heads == 1 else kernel.simdgroups
        kernel = replace(kernel, heads=1, simdgroups=simdgroups)
    return kernel


def _products(lowering: MetalLowering, op: Op, attrs: LatentDecode) -> HeadProductKernel:
    """The products of the heads' results, which are in threadgroup memory."""
    products = replace(attrs.products, dtype=lowering.graph.value(op.out).dtype)
    x = Tensor(("tokens", attrs.num_heads * attrs.kv_rank), DType.F32)
    kernel = heads_kernel(lowering, op, products, op.inputs["v_b"], x)
    return replace(kernel, outs=_OUTPUTS, simdgroups=1, in_threadgroup=True)


def _launch(
    lowering: MetalLowering, op: Op, kernel: LatentDecodeKernel, when: Condition | None, choice: Choice
) -> None:
    grid = (Extent(times=kernel.head_groups), Extent(dim="seqs"))
    chosen = choice.sizes(AttendWhole, without=DecodeAttention.names("unroll", "mma"))
    lowering.emit(op, kernel, grid, arena_buffers(lowering, op) | {"out": op.out}, when=when, chosen=chosen)


def _lower_long(lowering: MetalLowering, op: Op, attrs: LatentDecode, long: Condition, choice: Choice) -> None:
    """Adds the launches of long contexts: queries in the space of rows, partitions, and their reduction."""
    g, q = choice.geometry.decode_attention, lowering.value(op, "q")
    names = {port: f"{op.name}.{port}" for port in ("queries", "partial", "stats")}
    turned = replace(attrs.queries, dtype=q.dtype)
    lowering.scratch.append(Scratch(names["queries"], ("tokens", attrs.num_heads * attrs.row_dim), q.dtype))
    heads = {"x": op.inputs["q"], "weight": op.inputs["k_b"], "out": names["queries"]}
    launch_heads(lowering, op, turned, heads, long)
    own = attend_kernel(lowering, op, attrs)
    part = replace(
        own,
        label="attend_latent_part",
        heads=min(g.partition.heads or own.heads, own.heads),
        groups=min(2, own.groups),
        shares=SIMDGROUPS // 2,
        row=latent_row(lowering, op, attrs.write, "kv"),
        partition=g.partition.length,
        max_partitions=min(g.partition.most, -(-lowering.arena.context // g.partition.length)),
    )
    shape = ("seqs", part.num_heads, part.max_partitions)
    lowering.scratch.append(Scratch(names["partial"], (*shape, part.kv_rank), DType.F32))
    lowering.scratch.append(Scratch(names["stats"], (*shape, 4), DType.F32))
    grid = (Extent(times=part.head_groups), Extent(dim="seqs"), Extent(times=part.max_partitions))
    partial = {"partial": names["partial"], "stats": names["stats"]}
    buffers = arena_buffers(lowering, op) | partial | {"q": names["queries"]}
    lowering.emit(op, part, grid, buffers, when=long)
    reduce = LatentReduceKernel(
        "latent_reduce",
        products=_products(lowering, op, attrs),
        simdgroups=_MERGING,
        partition=part.partition,
        max_partitions=part.max_partitions,
    )
    merged = (Extent(times=reduce.num_heads * reduce.shares), Extent(dim="seqs"))
    chosen = choice.sizes(AttendPartition)
    lowering.emit(op, reduce, merged, partial | {"out": op.out}, when=long, chosen=chosen)
