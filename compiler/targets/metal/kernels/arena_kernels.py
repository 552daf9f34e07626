"""Contexts of the kernels that touch the arena: their base, block copies and the cache write."""

from dataclasses import dataclass

from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.buffers import ARENAS
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernels.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.rounding import round_up

_WORDS = {16: "uint4", 8: "uint2", 4: "uint"}


@dataclass(frozen=True)
class ArenaKernel(MetalKernel):
    """Base of the kernels that touch the arena."""

    arena: ArenaGeometry

    @property
    def cache(self) -> DType:
        """Element type of the arena."""
        return DType(self.arena.dtype)

    @property
    def cache_bytes(self) -> int:
        """Bytes of an element of the arena."""
        return self.cache.size_bytes

    @property
    def scaled(self) -> bool:
        """Whether the elements of a row are numbers that its scale, an f32 after the last of them, multiplies."""
        return self.cache is DType.Q8

    @property
    def row_elements(self) -> int:
        """Elements from one head's row of a token to the next head's."""
        return self.arena.row_elements

    @property
    def arena_ports(self) -> tuple[Port, ...]:
        """The arena's buffers and the token that orders the access."""
        return (*((arena, self.cache) for arena in ARENAS), ("token", DType.U32))


@dataclass(frozen=True)
class CopyBlocksKernel(ArenaKernel):
    """Copy-on-write of whole blocks."""

    template = "copy_blocks.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Pairs of blocks and the arena."""
        return (("copies", DType.I32), *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The token."""
        return (("token_out", DType.U32),)

    @property
    def threads(self) -> int:
        """A thread per word of a block, up to 256."""
        return min(256, round_up(self.chunks, SIMD_WIDTH))

    @property
    def block_bytes(self) -> int:
        """Bytes of one layer of a block."""
        return self.arena.block_size * self.arena.num_kv_heads * self.arena.row_bytes

    @property
    def word_bytes(self) -> int:
        """Bytes that a thread copies at a time: the most that every block of every layer is a multiple of."""
        return next(size for size in _WORDS if self.block_bytes % size == 0)

    @property
    def word(self) -> str:
        """The type of these."""
        return _WORDS[self.word_bytes]

    @property
    def chunks(self) -> int:
        """Words of one layer of a block."""
        return self.block_bytes // self.word_bytes


@dataclass(frozen=True)
class RopeKernel(ArenaKernel):
    """Base of the kernels that rotate: heads, RoPE, and the packed q, k, v they read.

    `rotary_dim` 0 is a layer without RoPE; cosines and sines are multiplied by `rope_scale`.
    """

    num_heads: int
    activation: DType
    frequencies: tuple[float, ...]
    rotary_dim: int
    rope_layout: str
    rope_scale: float

    @property
    def num_kv_heads(self) -> int:
        """KV heads."""
        return self.arena.num_kv_heads

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.arena.head_dim

    @property
    def gqa_ratio(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_width(self) -> int:
        """Columns of the packed projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def table_ports(self) -> tuple[Port, ...]:
        """The block table, when positions are looked up."""
        return (("block_tables", DType.I32),) if self.arena.mode == "paged" else ()


@dataclass(frozen=True)
class RopeCacheWriteKernel(RopeKernel):
    """Prefill: K rotated, K and V stored."""

    template = "rope_cache_write.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Packed projection, places and the arena."""
        places = (("positions", DType.I32), ("slots", DType.I32), ("layer", DType.U32))
        return (("qkv", self.activation), *places, *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The token."""
        return (("token_out", DType.U32),)

    @property
    def threads(self) -> int:
        """A thread per element, up to 256; in q8 a simdgroup per row of K or V, up to 8."""
        if self.scaled:
            return SIMD_WIDTH * min(8, 2 * self.num_kv_heads)
        return min(256, round_up(self.num_kv_heads * self.head_dim, SIMD_WIDTH))

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup."""
        return self.threads // SIMD_WIDTH

    @property
    def quads(self) -> int:
        """Groups of 4 elements of a row that a lane stores in q8."""
        return -(-self.head_dim // (4 * SIMD_WIDTH))
