"""Attention of whole texts within themselves, whose keys and values are in the packed projection."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.text_attention import PackedTextAttention
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.arena_kernel import LANES
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.kernel_parts.region import Region, place_regions, regions_bytes
from mlxr.compiler.targets.cpu.kernels.rope_table import rope_table_buffers
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers
from mlxr.compiler.targets.scores import query_scale

_TILE_FLOATS = 4096  # of K or of V: a third of a usual first-level cache
_QUERY_FLOATS = 8192
_MOST_COLUMNS = 96


@dataclass(frozen=True)
class CpuAttendText(CpuKernel):
    """Attention of tiles of queries over all keys of their text, in f32.

    Attributes:
        num_heads, num_kv_heads, head_dim, rotary_dim, rope_layout, scale, window: see `PackedTextAttention`.
    """

    template = "attend_text.jinja"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_layout: RopeLayout
    scale: float
    window: int | None

    @property
    def params(self) -> tuple[Param, ...]:
        """The packed projection, the table of rotations and the heads' results."""
        table = (Param("rope_table", "input"),) if self.rotary_dim else ()
        return (Param("qkv", "input"), *table, Param("out", "output"))

    @property
    def apart(self) -> bool:
        """See `CpuKernel.apart`."""
        return True

    @property
    def gqa_ratio(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_width(self) -> int:
        """Columns of the packed projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def padded_dim(self) -> int:
        """Elements of a head in scratch."""
        return round_up(self.head_dim, LANES)

    @property
    def query_scale(self) -> float:
        """Factor of the queries: it makes scores ready for exp2."""
        return query_scale(self.scale, None)

    @property
    def tile_tokens(self) -> int:
        """Query tokens of a tile: with their heads, columns of three vectors of 16."""
        columns = max(48, min(_MOST_COLUMNS, _QUERY_FLOATS // self.padded_dim) // 48 * 48)
        return max(1, columns // self.gqa_ratio)

    @property
    def rows(self) -> int:
        """Columns of a tile, one for each token and query head, rounded up: the length of rows in scratch."""
        return round_up(self.tile_tokens * self.gqa_ratio, LANES)

    @property
    def key_tile(self) -> int:
        """Keys whose scores are in scratch at the same time, a multiple of 16."""
        return max(LANES, min(64, _TILE_FLOATS // self.padded_dim // LANES * LANES))

    @property
    def regions(self) -> tuple[Region, ...]:
        """A thread's scratch."""
        return place_regions(
            (
                ("rows", "float", (LANES, self.padded_dim)),
                ("queries", "float", (self.padded_dim, self.rows)),
                ("scores", "float", (self.key_tile, self.rows)),
                ("values", "float", (self.padded_dim, self.rows)),
                ("keys", "float", (self.key_tile, self.padded_dim)),
                ("keep", "float", (self.rows,)),
                ("maxima", "float", (self.rows,)),
                ("sums", "float", (self.rows,)),
                ("places", "int32_t", (self.rows,)),
            )
        )

    @property
    def thread_bytes(self) -> int:
        """Bytes of the regions."""
        return regions_bytes(self.regions)


@lowers(PackedTextAttention)
def lower_attend_text(lowering: CpuLowering, op: Op, attrs: PackedTextAttention) -> None:
    """Adds the call for an op."""
    kernel = CpuAttendText(
        label="attend_text",
        num_heads=attrs.num_heads,
        num_kv_heads=attrs.num_kv_heads,
        head_dim=attrs.head_dim,
        rotary_dim=attrs.rotary_dim,
        rope_layout=attrs.rope_layout,
        scale=attrs.scale,
        window=attrs.window,
    )
    lowering.add_call(op, kernel, rope_table_buffers(lowering, op, attrs.rope_scale))
