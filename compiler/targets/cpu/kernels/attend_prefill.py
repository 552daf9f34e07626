"""Attention of tiles of queries over the KV arena, for prompts and their chunks."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import MOST_TILE_KEYS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.attention import PackedAttention, RopeAttention
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.arena_kernel import LANES
from mlxr.compiler.targets.cpu.kernel_parts.attention_kernel import (
    MATRIX_TILE_BYTES,
    CpuAttentionKernel,
    attention_fields,
)
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHeader, CpuHelper
from mlxr.compiler.targets.cpu.kernel_parts.region import Arrays, Region, place_regions, regions_bytes
from mlxr.compiler.targets.cpu.kernels.rope_table import rope_table_buffers
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers

_TILE_FLOATS = 4096  # of K or of V: a third of a usual first-level cache
_QUERY_FLOATS = 8192
_MOST_COLUMNS = 96
_TILED_COLUMNS = 128
_PREFILL_TILES = CpuHeader("prefill_tiles.h")


@dataclass(frozen=True)
class CpuAttendPrefill(CpuAttentionKernel):
    """Prefill: RoPE of the queries, and attention of tiles of queries over the arena."""

    template = "attend_prefill.jinja"

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """The headers of attention with matrix tiles, or with biases by distance, if the kernel uses them."""
        return (*self._tile_headers, _PREFILL_TILES) if self.tiles else self._slope_headers

    @property
    def tiles(self) -> bool:
        """Whether it uses matrix tiles if the machine has them."""
        return self._may_tile

    @property
    def tile_tokens(self) -> int:
        """Query tokens of a tile."""
        # Without matrix tiles, products take three vectors of 16 columns together; with them, two.
        few = max(48, min(_MOST_COLUMNS, _QUERY_FLOATS // self.padded_dim) // 48 * 48)
        return max(1, (_TILED_COLUMNS if self.tiles else few) // self.gqa_ratio)

    @property
    def rows(self) -> int:
        """Columns of a tile, one for each token and query head, rounded up: the length of rows in scratch."""
        return round_up(self.tile_tokens * self.gqa_ratio, 32 if self.tiles else LANES)

    @property
    def fixed_cost(self) -> int:
        """Cost of an item besides its keys, in keys."""
        return LANES

    @property
    def key_tile(self) -> int:
        """Keys whose scores are all in scratch at the same time, a multiple of 16.

        Their K, or V, takes about 16 KB as f32.
        """
        return max(LANES, min(64, _TILE_FLOATS // self.padded_dim // LANES * LANES))

    @property
    def offset_slots(self) -> int:
        """Offsets of rows of a tile of keys, rounded up to whole matrix tiles."""
        return round_up(self.key_tile, 32)

    @property
    def tiled_keys(self) -> int:
        """With matrix tiles, the keys whose scores of 32 columns are in scratch at the same time."""
        return 128

    @property
    def turned_columns(self) -> int:
        """The most columns for which turning weights costs no more than transposing V.

        With heads of 64, 96 columns over 5000 keys: 66 ns a key and KV head, 72 with V transposed.
        """
        return max(LANES, 3 * self.v_row_dim // 2 // LANES * LANES)

    @property
    def state_columns(self) -> int:
        """Columns whose values are in scratch at the same time, with matrix tiles: of a tile, or of several heads."""
        return max(self.rows, min(256, self.num_kv_heads * self.turned_columns))

    @property
    def ahead_lines(self) -> int:
        """Cache lines to prefetch for each two keys, of K as of V."""
        return -(-max(self.arena.row_bytes, self.arena.value_bytes) // 64)

    @property
    def tiled_dim(self) -> int:
        """Elements of a value's row, rounded up to whole pairs of matrix tiles; of a key if that is longer."""
        return 32 * self.v_steps

    @property
    def q_tile_bytes(self) -> int:
        """Bytes of the matrix tiles of 16 columns of queries."""
        return self.steps * MATRIX_TILE_BYTES

    @property
    def regions(self) -> tuple[Region, ...]:
        """A thread's scratch without matrix tiles."""
        return place_regions(
            (
                ("rows", "float", (LANES, self.padded_dim)),
                ("queries", "float", (self.padded_dim, self.rows)),
                ("scores", "float", (self.key_tile, self.rows)),
                ("values", "float", (self.padded_dim, self.rows)),
                ("keys", "float", (self.key_tile, self.padded_dim)),
                ("keep", "float", (self.rows,)),
                *self._columns(self.rows),
            )
        )

    @property
    def tiled_regions(self) -> tuple[Region, ...]:
        """A thread's scratch with matrix tiles."""
        halves = self.tiled_keys // 32
        scales: Arrays = (("k_scales", "float", (self.tiled_keys,)), ("v_scales", "float", (self.tiled_keys,)))
        return place_regions(
            (
                ("rows", "float", (LANES, self.padded_dim)),
                ("q_tiles", "uint8_t", (self.state_columns // LANES, self.q_tile_bytes)),
                ("scores", "float", (self.tiled_keys, 32)),
                ("weights", "uint8_t", (halves, 2, MATRIX_TILE_BYTES)),
                ("values", "float", (self.state_columns, self.tiled_dim)),
                ("copies", "uint8_t", (self.tiled_keys, self.steps, 64)),
                ("v_tiles", "uint8_t", (2 * self.v_steps, halves, MATRIX_TILE_BYTES)),
                *(scales if self.cache is DType.Q8 else ()),
                *self._columns(self.state_columns),
            )
        )

    def _columns(self, count: int) -> Arrays:
        return (
            ("maxima", "float", (count,)),
            ("sums", "float", (count,)),
            ("positions", "int32_t", (count,)),
        )

    @property
    def thread_bytes(self) -> int:
        """Bytes of the larger set of regions."""
        return max(regions_bytes(self.regions), regions_bytes(self.tiled_regions) if self.tiles else 0)


def call_attend_prefill(lowering: CpuLowering, op: Op, attrs: PackedAttention) -> None:
    """Adds the call for an op that attends to what is in the arena."""
    kernel = CpuAttendPrefill(label="attend_prefill", **attention_fields(lowering, op, attrs))
    assert max(kernel.key_tile, kernel.tiled_keys) <= MOST_TILE_KEYS, "it would read blocks that were given back"
    lowering.add_call(op, kernel, rope_table_buffers(lowering, op, attrs.rope_scale))


@lowers(RopeAttention)
def lower_attend_prefill(lowering: CpuLowering, op: Op, attrs: RopeAttention) -> None:
    """Adds the call for an op."""
    call_attend_prefill(lowering, op, attrs)
