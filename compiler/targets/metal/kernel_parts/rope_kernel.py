"""The base of the kernels that rotate queries or keys."""

from dataclasses import KW_ONLY, dataclass
from typing import TypedDict

from mlxr.compiler.formats.arena import CacheGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import ArenaKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering


@dataclass(frozen=True)
class WhollyRotated:
    """Base of what templates read of elements that are all rotated.

    Attributes:
        activation: their type.
        frequencies, rope_layout, rope_scale: see `RopeKernel`.
    """

    activation: DType
    frequencies: tuple[float, ...]
    rope_layout: RopeLayout
    rope_scale: float

    @property
    def rotary_dim(self) -> int:
        """Elements that are rotated."""
        return 2 * len(self.frequencies)

    @property
    def head_dim(self) -> int:
        """The same: all of them."""
        return self.rotary_dim


@dataclass(frozen=True)
class RopeKernel(ArenaKernel):
    """Base of the kernels that read packed queries, keys and values, and rotate some of them.

    Attributes:
        num_heads: query heads of qkv [tokens, (num_heads + num_kv_heads) * head_dim + num_kv_heads * value_dim].
        own_keys: whether qkv has keys and values; else it is [tokens, num_heads * head_dim], and they are those of an
            earlier layer.
        activation: element type of qkv.
        frequencies: the angle per position of each pair of elements.
        rotary_dim: number of leading elements of a head that are rotated; 0: the layer has no RoPE.
        rope_layout: the elements of a pair: neighbours, or elements that are half of `rotary_dim` apart.
        rope_scale: factor of cosines and sines.
        more_columns: columns of qkv behind the values, which are a gate's.
    """

    num_heads: int
    own_keys: bool
    activation: DType
    frequencies: tuple[float, ...]
    rotary_dim: int
    rope_layout: RopeLayout
    rope_scale: float
    _: KW_ONLY
    more_columns: int = 0

    @property
    def num_kv_heads(self) -> int:
        """KV heads."""
        return self.arena.num_kv_heads

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.arena.head_dim

    @property
    def value_dim(self) -> int:
        """Elements of a value."""
        return self.arena.value_dim

    @property
    def gqa_ratio(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_width(self) -> int:
        """Columns of the packed projection."""
        values = self.value_dim if self.has_values else 0
        own = self.num_kv_heads * (self.head_dim + values) if self.own_keys else 0
        return self.num_heads * self.head_dim + own + self.more_columns

    @property
    def has_values(self) -> bool:
        """Whether qkv has values, if it has keys: else they are its keys."""
        return True

    @property
    def packing(self) -> str:
        """What a row of qkv has, in words."""
        if self.own_keys and self.values_differ and self.has_values:
            keys = f"{self.num_heads} query, {self.num_kv_heads} key heads of {self.head_dim}"
            return f"{keys}, {self.num_kv_heads} value heads of {self.value_dim}"
        values = f", {self.num_kv_heads} value" if self.has_values else ""
        others = f", {self.num_kv_heads} key{values}" if self.own_keys else ""
        return f"{self.num_heads} query{others} heads of {self.head_dim}"

    @property
    def table_ports(self) -> tuple[Port, ...]:
        """The port of the block table, if the arena is paged."""
        return (("block_tables", DType.I32),) if self.arena.mode == "paged" else ()


class RopeFields(TypedDict):
    """The fields of `RopeKernel`."""

    arena: CacheGeometry
    num_heads: int
    own_keys: bool
    activation: DType
    frequencies: tuple[float, ...]
    rotary_dim: int
    rope_layout: RopeLayout
    rope_scale: float
    more_columns: int


def rope_fields(lowering: MetalLowering, op: Op) -> RopeFields:
    """The fields of an op's kernel."""
    attrs = op.attrs_as(PackedHeads)
    return {
        "arena": lowering.cache_of(op),
        "num_heads": attrs.num_heads,
        "own_keys": attrs.has_keys(lowering.value(op, "qkv").tensor),
        "activation": lowering.value(op, "qkv").dtype,
        "frequencies": lowering.value(op, "frequencies").data if attrs.rotary_dim else (),
        "rotary_dim": attrs.rotary_dim,
        "rope_layout": attrs.rope_layout,
        "rope_scale": attrs.rope_scale,
        "more_columns": attrs.more_columns(lowering.value(op, "qkv").tensor),
    }
