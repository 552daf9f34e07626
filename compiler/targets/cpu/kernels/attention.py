"""Contexts of the C kernels around the KV cache: RoPE, cache writes, attention and copies of blocks.

A head's numbers lie in scratch as f32, padded with zeros to whole vectors of 16 lanes (`padded_dim`), whatever the
machine's own vectors are.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.targets.cpu.kernel_parts.helper import CpuHelper
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.rounding import round_up
from mlxr.compiler.targets.scores import cap_log2, query_scale

_LANES = 16
_CACHE_LINE = 64
_TILE_FLOATS = 4096  # of K or of V: a third of a usual first level cache
_QUERY_FLOATS = 8192
_MOST_COLUMNS = 96
_TILED_COLUMNS = 128
_SPLIT_UNITS = 8
_TILE_BYTES = 1024
_TILED_HEADS = 4

_Arrays = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class CpuRopeTable(CpuKernel):
    """Cosines and sines of the step's positions, computed once for all layers.

    Attributes:
        frequencies: radians per position of each pair, scaling applied.
        scale: what cosines and sines are multiplied by.
    """

    template = "rope_table.jinja"
    frequencies: tuple[float, ...]
    scale: float = 1.0

    @property
    def params(self) -> tuple[Param, ...]:
        """The table, [tokens, rotary_dim] f32: a token's cosines, then its sines."""
        return (Param("out", "output"),)

    @property
    def rotary_dim(self) -> int:
        """Columns of the table, and elements of a head that are rotated."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True)
class CpuArenaKernel(CpuKernel):
    """Base of the kernels that touch the arena. Strides are in bytes, within K or within V."""

    arena: ArenaGeometry

    @property
    def cache(self) -> DType:
        """Element type of the arena."""
        return DType(self.arena.dtype)

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.arena.head_dim

    @property
    def padded_dim(self) -> int:
        """Elements of a head in scratch."""
        return round_up(self.arena.head_dim, _LANES)

    @property
    def num_kv_heads(self) -> int:
        """KV heads."""
        return self.arena.num_kv_heads

    @property
    def token_bytes(self) -> int:
        """From one token of a block to the next."""
        return self.arena.num_kv_heads * self.arena.row_bytes

    @property
    def chunk_bytes(self) -> int:
        """One layer of one block: adjacent bytes."""
        return self.arena.block_size * self.token_bytes

    @property
    def block_stride(self) -> int:
        """From one block to the next, in one layer."""
        return self.chunk_bytes * (self.arena.num_layers if self.arena.layout == "block" else 1)

    @property
    def layer_stride(self) -> int:
        """From one layer to the next, in one block."""
        return self.chunk_bytes * (1 if self.arena.layout == "block" else self.arena.num_blocks)


@dataclass(frozen=True)
class CpuCopyBlocks(CpuArenaKernel):
    """Copy-on-write of whole blocks. Not a kernel of a step: `void NAME(mlxr_model *, const int32_t *pairs, int)`."""

    template = "copy_blocks.jinja"

    @property
    def params(self) -> tuple[Param, ...]:
        """None that a launch would bind."""
        return ()


@dataclass(frozen=True)
class CpuRotaryKernel(CpuArenaKernel):
    """Base of the kernels that rotate heads of the packed projection, [tokens, qkv_width] f32.

    Attributes:
        num_heads: query heads.
        rotary_dim: leading elements of a head that are rotated; 0: none, and there is no table.
    """

    num_heads: int
    rotary_dim: int
    rope_layout: Literal["half", "interleaved"]

    @property
    def gqa_ratio(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def gqa_padded(self) -> int:
        """The same, rounded up to whole vectors."""
        return round_up(self.gqa_ratio, _LANES)

    @property
    def qkv_width(self) -> int:
        """Columns of the packed projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def _inputs(self) -> tuple[Param, ...]:
        table = (Param("rope_table", "input"),) if self.rotary_dim else ()
        return (Param("qkv", "input"), *table, Param("layer", "layer"))


@dataclass(frozen=True)
class CpuCacheWrite(CpuRotaryKernel):
    """Prefill: K rotated, K and V stored."""

    template = "cache_write.jinja"

    @property
    def params(self) -> tuple[Param, ...]:
        """Packed projection, the step's rotations and the layer."""
        return self._inputs


@dataclass(frozen=True)
class Region:
    """An array in scratch, `offset` bytes from its start; `type` is that of its elements in C."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * (1 if self.type == "uint8_t" else 4)


def _placed(arrays: _Arrays) -> tuple[Region, ...]:
    regions: list[Region] = []
    offset = 0
    for name, kind, shape in arrays:
        regions.append(Region(name, kind, shape, offset))
        offset = round_up(offset + regions[-1].size_bytes, _CACHE_LINE)
    return tuple(regions)


def _size_bytes(regions: tuple[Region, ...]) -> int:
    return regions[-1].offset + regions[-1].size_bytes


@dataclass(frozen=True)
class AttentionTiles(CpuHelper):
    """The header of attention with matrix tiles, which exact programs go without."""

    template = "attend_tiles.h"

    @property
    def name(self) -> str:
        """The name of the header."""
        return self.template


@dataclass(frozen=True)
class PrefillTiles(AttentionTiles):
    """The header of prefill's attention with matrix tiles."""

    template = "prefill_tiles.h"


@dataclass(frozen=True)
class CpuAttend(CpuRotaryKernel):
    """Base of the attention kernels.

    Attributes:
        scale: of the scores.
        window: most keys that a query sees, itself included; None sees all.
        compute: `fast` may use bf16 matrix tiles where the machine has them.
        softcap: scores become softcap * tanh(score / softcap); None: they stay.
        sinks: whether each query head has one more logit, [num_heads], in its softmax's denominator.
        temperature: (beta, original_context): queries are multiplied by 1 + beta * log(1 + position //
            original_context).
    """

    scale: float
    window: int | None
    compute: Literal["exact", "fast"]
    softcap: float | None = None
    sinks: bool = False
    temperature: tuple[float, int] | None = None

    @property
    def params(self) -> tuple[Param, ...]:
        """Packed projection, the step's rotations, the layer, sinks and the heads' results."""
        sinks = (Param("sinks", "vector"),) if self.sinks else ()
        return (*self._inputs, *sinks, Param("out", "output"))

    @property
    def query_scale(self) -> float:
        """What queries are multiplied by: scores are for exp2, or, with a cap, for tanh."""
        return query_scale(self.scale, self.softcap)

    @property
    def cap(self) -> float:
        """The cap of scores for exp2; 0: none."""
        return cap_log2(self.softcap)

    @property
    def rows_in_place(self) -> bool:
        """Whether a matrix tile may be a group of the arena's own rows."""
        return self.cache is DType.BF16 and self.head_dim % 32 == 0 and self.arena.block_size >= _LANES

    @property
    def steps(self) -> int:
        """Matrix tiles that a head's elements fill as the depth of a product."""
        return -(-self.head_dim // 32)

    @property
    def _may_tile(self) -> bool:
        return self.compute == "fast" and self.cache is not DType.F32

    @property
    @abstractmethod
    def helpers(self) -> tuple[AttentionTiles, ...]:
        """Headers that only these kernels need."""


@dataclass(frozen=True)
class CpuAttendDecode(CpuAttend):
    """Decode: RoPE, cache write and attention of one new token a sequence."""

    template = "attend_decode.jinja"

    @property
    def helpers(self) -> tuple[AttentionTiles, ...]:
        """Matrix tiles, if used."""
        return (AttentionTiles(),) if self.tiles else ()

    @property
    def split_units(self) -> int:
        """Sixteens of keys a thread from which on threads share keys and not heads."""
        return _SPLIT_UNITS

    @property
    def key_tile(self) -> int:
        """Keys whose scores are held at once."""
        return 64

    @property
    def tiles(self) -> bool:
        """Whether long contexts go through matrix tiles where the machine has them; few heads wait for memory."""
        return self._may_tile and self.gqa_ratio >= _TILED_HEADS

    @property
    def q_tile_bytes(self) -> int:
        """Tiles of the queries on one KV head."""
        return -(-self.gqa_ratio // _LANES) * self.steps * _TILE_BYTES

    @property
    def regions(self) -> tuple[Region, ...]:
        """A thread's scratch. Only its first and its last sequence may be other threads' too: two partial results."""
        tiled: _Arrays = (
            ("q_tiles", "uint8_t", (self.num_kv_heads, self.q_tile_bytes)),
            ("copies", "uint8_t", (self.key_tile, self.steps, 64)),
            ("weights", "uint8_t", (self.key_tile // 32, _TILE_BYTES)),
            ("v_tiles", "uint8_t", (self.key_tile // 32, 2 * self.steps, _TILE_BYTES)),
            ("v_sums", "float", (2 * self.steps, _LANES, _LANES)),
        )
        return _placed(
            (
                ("queries", "float", (self.num_heads, self.padded_dim)),
                ("values", "float", (2, self.num_heads, self.padded_dim)),
                ("maxima", "float", (2, self.num_kv_heads, self.gqa_padded)),
                ("sums", "float", (2, self.num_kv_heads, self.gqa_padded)),
                ("scores", "float", (self.key_tile + 32, _LANES)),
                *(tiled if self.tiles else ()),
            )
        )

    @property
    def thread_bytes(self) -> int:
        """All regions."""
        return _size_bytes(self.regions)


@dataclass(frozen=True)
class CpuAttendPrefill(CpuAttend):
    """Prefill: RoPE of the queries, and attention of tiles of them over the arena."""

    template = "attend_prefill.jinja"

    @property
    def helpers(self) -> tuple[AttentionTiles, ...]:
        """Matrix tiles, if used."""
        return (AttentionTiles(), PrefillTiles()) if self.tiles else ()

    @property
    def tiles(self) -> bool:
        """Whether it goes through matrix tiles where the machine has them."""
        return self._may_tile

    @property
    def tile_tokens(self) -> int:
        """Query tokens of a tile."""
        # Untiled products take three vectors of 16 columns together, tiled ones two.
        few = max(48, min(_MOST_COLUMNS, _QUERY_FLOATS // self.padded_dim) // 48 * 48)
        return max(1, (_TILED_COLUMNS if self.tiles else few) // self.gqa_ratio)

    @property
    def rows(self) -> int:
        """Columns (token, query head of the group) of a tile, rounded up: the rows of scratch are that long."""
        return round_up(self.tile_tokens * self.gqa_ratio, 32 if self.tiles else _LANES)

    @property
    def fixed_cost(self) -> int:
        """What an item costs however few keys it sees, in keys."""
        return _LANES

    @property
    def key_tile(self) -> int:
        """Keys whose scores are held at once, a multiple of 16; K or V of them as f32 take 16 KB."""
        return max(_LANES, min(64, _TILE_FLOATS // self.padded_dim // _LANES * _LANES))

    @property
    def offset_slots(self) -> int:
        """The same, rounded up."""
        return round_up(self.key_tile, 32)

    @property
    def tiled_keys(self) -> int:
        """Keys whose scores with 32 columns are held at once, with matrix tiles."""
        return 128

    @property
    def tiled_dim(self) -> int:
        """Elements of a head in whole pairs of matrix tiles."""
        return 32 * self.steps

    @property
    def q_tile_bytes(self) -> int:
        """Tiles of 16 columns of queries."""
        return self.steps * _TILE_BYTES

    @property
    def regions(self) -> tuple[Region, ...]:
        """A thread's scratch without matrix tiles."""
        return _placed(
            (
                ("rows", "float", (_LANES, self.padded_dim)),
                ("queries", "float", (self.padded_dim, self.rows)),
                ("scores", "float", (self.key_tile, self.rows)),
                ("values", "float", (self.padded_dim, self.rows)),
                ("keys", "float", (self.key_tile, self.padded_dim)),
                ("keep", "float", (self.rows,)),
                *self._columns,
            )
        )

    @property
    def tiled_regions(self) -> tuple[Region, ...]:
        """A thread's scratch with matrix tiles."""
        halves = self.tiled_keys // 32
        scales: _Arrays = (("k_scales", "float", (self.tiled_keys,)), ("v_scales", "float", (self.tiled_keys,)))
        return _placed(
            (
                ("rows", "float", (_LANES, self.padded_dim)),
                ("q_tiles", "uint8_t", (self.rows // _LANES, self.q_tile_bytes)),
                ("scores", "float", (self.tiled_keys, 32)),
                ("weights", "uint8_t", (halves, 2, _TILE_BYTES)),
                ("values", "float", (self.tiled_dim, self.rows)),
                ("copies", "uint8_t", (self.tiled_keys, self.steps, 64)),
                ("v_tiles", "uint8_t", (2 * self.steps, halves, _TILE_BYTES)),
                *(scales if self.cache is DType.Q8 else ()),
                *self._columns,
            )
        )

    @property
    def _columns(self) -> _Arrays:
        return (
            ("maxima", "float", (self.rows,)),
            ("sums", "float", (self.rows,)),
            ("positions", "int32_t", (self.rows,)),
        )

    @property
    def thread_bytes(self) -> int:
        """All regions of the larger of the two."""
        return max(_size_bytes(self.regions), _size_bytes(self.tiled_regions) if self.tiles else 0)
