"""Contexts of the attention kernels."""

from dataclasses import dataclass, fields
from functools import cached_property

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernels.arena_kernels import RopeKernel
from mlxr.compiler.targets.metal.kernels.kernel import SIMD_WIDTH, THREADGROUP_BYTES, MetalKernel
from mlxr.compiler.targets.rounding import round_up
from mlxr.compiler.targets.scores import LOG2_E, cap_log2, query_scale

MMA_HEADS, MMA_KEYS, MMA_ROWS = 8, 16, 16
"""Query heads and keys of a matrix instruction in decode, and rows of one in prefill."""
_TILE_ELEMENTS = 4096  # of K, and of V
_MOST_QUADS = 16  # float4 registers of queries, and again of values, that a lane may hold


@dataclass(frozen=True)
class AttentionKernel(RopeKernel):
    """Base of the kernels that attend.

    Attributes:
        scale: of the scores.
        window: tokens that a query sees, itself included; None: all.
        softcap: scores become softcap * tanh(score / softcap); None: they stay.
        temperature: (beta, context): queries times 1 + beta * ln(1 + floor(position / context)); None: they stay.
        sinks: type of the heads' sinks, each one more score in its head's softmax; None: there are none.
    """

    scale: float
    window: int | None
    softcap: float | None
    temperature: tuple[float, int] | None
    sinks: DType | None

    @property
    def query_scale(self) -> float:
        """Factor of the queries: it makes scores ready for exp2, or for tanh where they are capped."""
        return query_scale(self.scale, self.softcap)

    @property
    def cap_log2(self) -> float:
        """The cap for exp2."""
        assert self.softcap, "asked for where scores are capped"
        return cap_log2(self.softcap)

    @property
    def log2_e(self) -> float:
        """Factor of the sinks for exp2."""
        return LOG2_E

    @property
    def sink_ports(self) -> tuple[Port, ...]:
        """The sinks, where there are any."""
        return (("sinks", self.sinks),) if self.sinks else ()

    @property
    def suits_mma(self) -> bool:
        """Whether types and heads are such as matrix instructions take."""
        return self.activation.is_16_bit and self.cache is self.activation and self.head_dim in (64, 128)

    @property
    def weight_exponent(self) -> int:
        """Weights that matrix instructions take are 2^this at most: f16 has more numbers above 1 than below."""
        return 14 if self.activation is DType.F16 else 0


@dataclass(frozen=True)
class AttendKernel(AttentionKernel):
    """Decode attention; with `partition` > 0 its split-KV variant, whose sinks the reduction counts.

    Attributes:
        heads: query heads of a threadgroup, a divisor of those on a KV head.
        unroll: keys of a lane group that are loaded and scored at once.
    """

    template = "attend.metal.jinja"
    simdgroups: int
    partition: int
    max_partitions: int
    heads: int
    unroll: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Packed projection, places and the arena."""
        places = (("positions", DType.I32), ("slots", DType.I32), *self.table_ports, ("layer", DType.U32))
        return (("qkv", self.activation), *places, *self.sink_ports, *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The heads' results, or partial ones, and the token."""
        results: tuple[Port, ...] = (("out", self.activation),)
        if self.split:
            results = (("partial", DType.F32), ("stats", DType.F32))
        return (*results, ("token_out", DType.U32))

    @property
    def threads(self) -> int:
        """All simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def split(self) -> bool:
        """Whether the context is split into partitions."""
        return self.partition > 0

    @property
    def groups(self) -> int:
        """Threadgroups that share the query heads of one KV head."""
        return self.gqa_ratio // self.heads

    @cached_property
    def _split_of_a_head(self) -> tuple[int, int]:
        """(vec, lanes): how a head is dealt out to lanes.

        The one that wastes fewest lanes on padding without holding too many registers; then the widest loads, then the
        most lanes (in q8, whose loads are of 4 bytes, 8 of them: several loads on the way and few sums across lanes).
        Where every one needs too many registers, the one that needs fewest.
        """
        if self.scaled:
            ways = [(4, lanes) for lanes in (8, 16, 4, 32, 2, 1)]
        else:
            ways = [(vec, lanes) for vec in (16 // self.cache_bytes, 4) for lanes in (32, 16, 8, 4, 2, 1)]
        light = [way for way in ways if self._quads(*way) * self.heads <= _MOST_QUADS]
        return min(light or [(4, SIMD_WIDTH)], key=lambda way: way[1] * self._quads(*way))

    def _quads(self, vec: int, lanes: int) -> int:
        return -(-self.head_dim // (vec * lanes)) * vec // 4

    @property
    def vec(self) -> int:
        """Elements of one load of a lane: 16 bytes, or 8; in q8, whose rows are aligned to 4 bytes, these."""
        return self._split_of_a_head[0]

    @property
    def lanes(self) -> int:
        """Lanes that share a key."""
        return self._split_of_a_head[1]

    @property
    def quads(self) -> int:
        """Float4s of a head that a lane holds."""
        return self._quads(self.vec, self.lanes)

    @property
    def padded(self) -> bool:
        """Whether some lanes hold float4s past the end of the head."""
        return self.quads * self.lanes * 4 > self.head_dim

    @property
    def keys(self) -> int:
        """Keys of one step of a simdgroup."""
        return SIMD_WIDTH // self.lanes

    @property
    def newest_apart(self) -> bool:
        """Whether the new token's score and value are added when simdgroups are merged, and not before."""
        return False

    @property
    def value_stride(self) -> int:
        """Numbers from one head's values to the next one's in threadgroup memory."""
        return self.head_dim

    @property
    def merge_heads(self) -> int:
        """Query heads merged between two barriers, as many as threadgroup memory holds."""
        stats = 2 * 4 * self.simdgroups * self.heads
        one = 4 * self.simdgroups * self.head_dim
        return max(1, min(self.heads, (THREADGROUP_BYTES - stats) // one))

    @property
    def threadgroup_bytes(self) -> int:
        """Maxima, sums and values of the simdgroups."""
        return 4 * self.simdgroups * (2 * self.heads + self.merge_heads * self.head_dim)


@dataclass(frozen=True)
class AttendMmaKernel(AttendKernel):
    """Decode attention by matrix instructions, for at most 8 query heads on a KV head; `unroll` has no meaning."""

    template = "attend_mma.metal.jinja"

    @staticmethod
    def takes(kernel: AttendKernel) -> bool:
        """Whether there is a kernel by matrix instructions for what this one does."""
        return kernel.suits_mma and kernel.gqa_ratio <= MMA_HEADS

    @property
    def newest_apart(self) -> bool:
        """They are: all keys of a simdgroup are read in the same way."""
        return True

    @property
    def one_block(self) -> bool:
        """Whether 16 keys from the first on are in one block always."""
        whole = self.partition % MMA_KEYS == 0 and self.window is None
        return whole and self.arena.block_size % MMA_KEYS == 0

    @property
    def value_stride(self) -> int:
        """Heads begin in different banks."""
        return self.head_dim + 4

    @property
    def merge_heads(self) -> int:
        """As many in each turn, as few turns as threadgroup memory allows."""
        one = 4 * self.simdgroups * self.value_stride
        turns = -(-self.heads // max(1, (THREADGROUP_BYTES - self._fixed_bytes) // one))
        return -(-self.heads // turns)

    @property
    def threadgroup_bytes(self) -> int:
        """Queries, the new token, and what simdgroups found."""
        return self._fixed_bytes + 4 * self.simdgroups * self.merge_heads * self.value_stride

    @property
    def _fixed_bytes(self) -> int:
        return 4 * (self.heads * self.head_dim + self.head_dim + self.heads + 2 * self.simdgroups * self.heads)


@dataclass(frozen=True)
class AttendReduceKernel(MetalKernel):
    """Merges the partitions of split-KV."""

    template = "attend_reduce.metal.jinja"
    num_heads: int
    head_dim: int
    partition: int
    max_partitions: int
    window: int | None
    activation: DType
    sinks: DType | None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Partial results, sinks and the places that tell how many partitions there are."""
        sinks: tuple[Port, ...] = (("sinks", self.sinks),) if self.sinks else ()
        return (("partial", DType.F32), ("stats", DType.F32), *sinks, ("positions", DType.I32))

    @property
    def log2_e(self) -> float:
        """Factor of the sinks for exp2."""
        return LOG2_E

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The heads' results."""
        return (("out", self.activation),)

    @property
    def threads(self) -> int:
        """A thread per element of a head."""
        return round_up(self.head_dim, SIMD_WIDTH)


@dataclass(frozen=True)
class AttendPrefillKernel(AttentionKernel):
    """Prefill attention over tiles of query tokens."""

    template = "attend_prefill.metal.jinja"
    tile: int
    heads: int
    keys: int
    rows_per_simdgroup: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Packed projection, tiles, places and the arena."""
        places = (
            ("query_tiles", DType.I32),
            ("positions", DType.I32),
            ("query_start", DType.I32),
            *self.table_ports,
            ("layer", DType.U32),
        )
        return (("qkv", self.activation), *places, *self.sink_ports, *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The heads' results and the token."""
        return (("out", self.activation), ("token_out", DType.U32))

    @property
    def simdgroups(self) -> int:
        """Simdgroups for the tile's rows."""
        return -(-self.tile * self.heads // self.rows_per_simdgroup)

    @property
    def head_groups(self) -> int:
        """Threadgroups that share the query heads of one KV head: one, unless there are too many heads for it."""
        return -(-self.gqa_ratio // self.heads)

    @property
    def threads(self) -> int:
        """All simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def rows(self) -> int:
        """Rows (token, query head) of a threadgroup, unused ones included."""
        return self.simdgroups * self.rows_per_simdgroup

    @property
    def chunk(self) -> str:
        """The type of what a thread moves of a key at a time: 16 bytes; in q8, whose rows are aligned to it, 4."""
        return "uint" if self.scaled else "uint4"

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk."""
        return 4 if self.scaled else 16

    @property
    def chunks(self) -> int:
        """Chunks of a key; in q8 the last one is its scale."""
        return self.arena.row_bytes // self.chunk_bytes

    @property
    def element_chunks(self) -> int:
        """Chunks of a key that are its elements."""
        return self.head_dim * self.cache_bytes // self.chunk_bytes

    @property
    def quads_per_chunk(self) -> int:
        """Float4s of a chunk once widened."""
        return self.chunk_bytes // (4 * self.cache_bytes)

    @property
    def stride(self) -> int:
        """Chunks from one key of a tile to the next: odd, so that lanes reading one chunk of 32 keys hit all banks."""
        return self.chunks | 1

    @property
    def dims_per_lane(self) -> int:
        """Elements of a head whose values a lane sums."""
        return -(-self.head_dim // SIMD_WIDTH)

    @property
    def threadgroup_bytes(self) -> int:
        """Queries, the K and V tiles and the weights."""
        tiles = 2 * self.keys * self.stride * self.chunk_bytes
        return 4 * self.rows * self.head_dim + tiles + 4 * self.rows * self.keys


@dataclass(frozen=True)
class AttendPrefillMmaKernel(AttendPrefillKernel):
    """Prefill attention by matrix instructions: 16 rows a simdgroup, and as many keys as 16 KiB of K and V are."""

    template = "attend_prefill_mma.metal.jinja"

    @staticmethod
    def takes(kernel: AttendPrefillKernel) -> bool:
        """Whether there is a kernel by matrix instructions for what this one does."""
        return kernel.suits_mma

    @staticmethod
    def made_of(kernel: AttendPrefillKernel, rows: int) -> "AttendPrefillMmaKernel":
        """The kernel for what this one does, of so many rows."""
        heads = min(rows, kernel.gqa_ratio)
        sizes = {"tile": rows // heads, "heads": heads, "keys": _TILE_ELEMENTS // kernel.head_dim}
        same = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
        return AttendPrefillMmaKernel(**same | sizes | {"label": f"{kernel.label}_mma", "rows_per_simdgroup": MMA_ROWS})

    @property
    def turns(self) -> int:
        """Pairs (cosine, sine) for the tile's tokens, kept where keys come later; 0: there is no room for them."""
        turns = self.tile * self.rotary_dim // 2
        return turns if 8 * turns <= self.threadgroup_bytes else 0

    @property
    def loads(self) -> int:
        """Times 16 bytes that a thread moves of a tile of K, and again of V."""
        return -(-self.keys * self.head_dim // (8 * self.threads))

    @property
    def threadgroup_bytes(self) -> int:
        """The K and V tiles."""
        return 2 * _TILE_ELEMENTS * self.cache_bytes
