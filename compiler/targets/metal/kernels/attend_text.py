"""Attention of whole texts within themselves, whose keys and values are in the packed projection."""

from collections.abc import Iterator
from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.text_attention import PackedTextAttention
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, THREADGROUP_BYTES, MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers
from mlxr.compiler.targets.scores import query_scale

_ROWS_PER_SIMDGROUP = 4


@dataclass(frozen=True)
class AttendTextKernel(MetalKernel):
    """Attention of tiles of query tokens over all keys of their text.

    Attributes:
        num_heads, num_kv_heads, head_dim: heads of qkv, and elements of each.
        activation: element type of qkv and of the result.
        frequencies, rotary_dim, rope_layout, rope_scale: see `RopeKernel`.
        scale, window: see `PackedTextAttention`.
        tile: query tokens of a tile.
        heads: query heads per threadgroup, all of one KV head.
        keys: keys that are in threadgroup memory at once.
        batch_tile: query tokens of a tile of the batch.
    """

    template = "attend_text.metal.jinja"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    activation: DType
    frequencies: tuple[float, ...]
    rotary_dim: int
    rope_layout: RopeLayout
    rope_scale: float
    scale: float
    window: int | None
    tile: int
    heads: int
    keys: int
    batch_tile: int = 0

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The packed projection, the tiles, and where texts begin and what positions their tokens have."""
        places = (("query_tiles", DType.I32), ("query_start", DType.I32))
        positions = (("positions", DType.I32),) if self.rotary_dim else ()
        return (("qkv", self.activation), *places, *positions)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The results of the heads."""
        return (("out", self.activation),)

    @property
    def gqa_ratio(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def head_groups(self) -> int:
        """Threadgroups that share the query heads of one KV head."""
        return -(-self.gqa_ratio // self.heads)

    @property
    def value_dim(self) -> int:
        """Elements of a value."""
        return self.head_dim

    @property
    def qkv_width(self) -> int:
        """Columns of the packed projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def query_scale(self) -> float:
        """Factor of the queries: it makes scores ready for exp2."""
        return query_scale(self.scale, None)

    @property
    def rows_per_simdgroup(self) -> int:
        """Rows of a simdgroup; a row is one query head of one token."""
        return min(_ROWS_PER_SIMDGROUP, self.tile * self.heads)

    @property
    def simdgroups(self) -> int:
        """Simdgroups that the rows of a tile need."""
        return -(-self.tile * self.heads // self.rows_per_simdgroup)

    @property
    def rows(self) -> int:
        """Rows of a threadgroup, unused ones included."""
        return self.simdgroups * self.rows_per_simdgroup

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def stride(self) -> int:
        """Floats from one key of a tile to the next: odd, so that lanes that read 32 keys use all banks."""
        return self.head_dim | 1

    @property
    def dims_per_lane(self) -> int:
        """Elements of a value that a lane sums."""
        return -(-self.head_dim // SIMD_WIDTH)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the queries, of a tile of K and then V, and of the weights."""
        return 4 * (self.rows * self.head_dim + self.keys * self.stride + self.rows * self.keys)


@lowers(PackedTextAttention)
def lower_attend_text(lowering: MetalLowering, op: Op, attrs: PackedTextAttention) -> None:
    """Adds the launch of the kernel with the largest tiles that threadgroup memory holds.

    Raises:
        PlanError: not even the smallest tile fits.
    """
    kernel = next((one for one in _kernels(lowering, op, attrs) if one.threadgroup_bytes <= THREADGROUP_BYTES), None)
    if kernel is None:
        raise PlanError(f"no tile of text attention with heads of {attrs.head_dim} fits {THREADGROUP_BYTES} bytes")
    grid = (Extent(times=kernel.num_kv_heads * kernel.head_groups), Extent(dim="tiles"))
    lowering.emit(op, kernel, grid, {"out": op.out})


def _kernels(lowering: MetalLowering, op: Op, attrs: PackedTextAttention) -> Iterator[AttendTextKernel]:
    """The kernel with tiles of all sizes, the largest ones first."""
    ratio = attrs.num_heads // attrs.num_kv_heads
    for rows, keys in ((rows, keys) for rows in (32, 16, 8, 4) for keys in (32, 16, 8)):
        heads = min(rows, ratio)
        yield AttendTextKernel(
            "attend_text",
            num_heads=attrs.num_heads,
            num_kv_heads=attrs.num_kv_heads,
            head_dim=attrs.head_dim,
            activation=lowering.value(op, "qkv").dtype,
            frequencies=lowering.value(op, "frequencies").data if attrs.rotary_dim else (),
            rotary_dim=attrs.rotary_dim,
            rope_layout=attrs.rope_layout,
            rope_scale=attrs.rope_scale,
            scale=attrs.scale,
            window=attrs.window,
            tile=rows // heads,
            heads=heads,
            keys=keys,
        )
