"""Attention of a decode step."""

from dataclasses import dataclass
from functools import cached_property

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.targets.metal.kernel_parts.attention_kernel import AttentionKernel
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, THREADGROUP_BYTES

_MOST_QUADS = 16
"""The most vectors of 4 elements of queries (and of values) that a lane may keep in registers."""


@dataclass(frozen=True)
class AttendKernel(AttentionKernel):
    """RoPE, cache write and attention of one new token of each sequence; of others' keys, no write.

    Attributes:
        simdgroups: simdgroups per threadgroup; they share its keys.
        partition: tokens in the shortest partition of a context (split-KV); 0: a threadgroup reads the whole context.
            For a split context, the reduction adds the sinks.
        max_partitions: the most partitions of a context.
        heads: query heads per threadgroup, a divisor of the query heads per KV head.
        unroll: keys that a group of lanes loads and scores at once.
    """

    template = "attend.metal.jinja"
    simdgroups: int
    partition: int
    max_partitions: int
    heads: int
    unroll: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The packed projection, positions and slots of the tokens, the layer, the sinks, and the arena."""
        slots = (("slots", DType.I32),) if self.own_keys else ()
        places = (("positions", DType.I32), *slots, *self.table_ports, ("layer", DType.U32))
        norms = self.norms.ports if self.norms else ()
        return (("qkv", self.activation), *places, *norms, *self.sink_ports, *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The results of the heads, or those of each partition, and the token."""
        results: tuple[Port, ...] = (("out", self.activation),)
        if self.split:
            results = (("partial", DType.F32), ("stats", DType.F32))
        return (*results, ("token_out", DType.U32))

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def split(self) -> bool:
        """Whether the context is split into partitions."""
        return self.partition > 0

    @property
    def together(self) -> int:
        """Threadgroups that share a context and read each other's memory."""
        return 1

    @property
    def groups(self) -> int:
        """Threadgroups that share the query heads of one KV head."""
        return self.gqa_ratio // self.heads

    @cached_property
    def _head_split(self) -> tuple[int, int]:
        """(vec, lanes): how lanes share the elements of a head.

        Among the splits that do not need too many registers, we take the one that wastes the fewest lanes on padding;
        among equals, the one with the widest loads, then the one with the most lanes. In q8, whose loads have 4 bytes,
        8 lanes come first: they have several loads in flight, and few sums across lanes. If all splits need too many
        registers, we take the one that needs the fewest.
        """
        if self.scaled or self.mixed:
            # In q4, eight lanes mix a group.
            splits = [(4, lanes) for lanes in ((8, 16, 32) if self.mixed else (8, 16, 4, 32, 2, 1))]
        else:
            splits = [(vec, lanes) for vec in (16 // self.cache_bytes, 4) for lanes in (32, 16, 8, 4, 2, 1)]
        light = [split for split in splits if self._quads(*split) * self.heads <= _MOST_QUADS]
        return min(light or [(4, SIMD_WIDTH)], key=lambda split: split[1] * self._quads(*split))

    def _quads(self, vec: int, lanes: int) -> int:
        """Of the longer of keys and values."""
        return -(-max(self.head_dim, self.value_dim) // (vec * lanes)) * vec // 4

    def _quads_of(self, elements: int) -> int:
        return -(-elements // (self.vec * self.lanes)) * self.vec // 4

    @property
    def vec(self) -> int:
        """Elements of one load of a lane, of 16 or of 8 bytes; in q8 and q4, whose rows are aligned to 4, of 4."""
        return self._head_split[0]

    @property
    def lanes(self) -> int:
        """Lanes that share a key."""
        return self._head_split[1]

    @property
    def quads(self) -> int:
        """Vectors of 4 elements of a query or key that a lane holds."""
        return self._quads_of(self.head_dim)

    @property
    def value_quads(self) -> int:
        """The same of a value."""
        return self._quads_of(self.value_dim)

    @property
    def padded(self) -> bool:
        """Whether some lanes hold vectors past the end of a query or key."""
        return self.quads * self.lanes * 4 > self.head_dim

    @property
    def value_padded(self) -> bool:
        """The same of a value."""
        return self.value_quads * self.lanes * 4 > self.value_dim

    @property
    def keys(self) -> int:
        """Keys that a simdgroup takes at a time."""
        return SIMD_WIDTH // self.lanes

    @property
    def turns(self) -> int:
        """Pairs of cosine and sine of the new token's position in threadgroup memory."""
        return self.rotary_dim // 2 if any(self.frequencies) else 0

    @property
    def norm_bytes(self) -> int:
        """Bytes of the normalised heads: queries, and the new key and value."""
        heads = self.heads + (2 if self.own_keys else 0)
        return round_up(heads * self.head_dim * self.activation.size_bytes, 16) if self.norms else 0

    @property
    def head_loads(self) -> tuple[tuple[str, int], ...]:
        """The vector loads that norms need: element type, and elements of a load."""
        norms = (self.activation, self.norms.q, self.norms.k) if self.norms else ()
        whole = ((str(self.activation), 8),) if self.whole_heads else ()
        return (*whole, *((str(dtype), 4) for dtype in norms if dtype))

    @property
    def loads_ahead(self) -> bool:
        """Whether keys and values are asked for a turn ahead: a lane's loads have 16 bytes."""
        plain = not (self.mixed or self.scaled or self.values_differ or self.padded)
        return plain and self.vec * self.cache_bytes == 16

    @property
    def whole_heads(self) -> bool:
        """Whether a lane loads its elements of a query, and of the new key and value, as vectors of eight."""
        plain = not (self.norms or self.mixed or self.scaled or self.values_differ or self.padded)
        turns = self.turns * 2 == self.head_dim and self.head_dim % 16 == 0
        return plain and turns and self.own_keys and self.vec == 8 and self.cache_bytes == 2

    @property
    def merge_heads(self) -> int:
        """Query heads that are merged between two barriers: as many as threadgroup memory holds."""
        stats = 2 * 4 * self.simdgroups * self.heads + self.norm_bytes + 8 * self.turns
        head_bytes = 4 * self.simdgroups * self.value_dim
        return max(1, min(self.heads, (THREADGROUP_BYTES - stats) // head_bytes))

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the turns, and of the simdgroups' maxima, sums and values."""
        sums = 4 * self.simdgroups * (2 * self.heads + self.merge_heads * self.value_dim)
        return self.norm_bytes + 8 * self.turns + sums
