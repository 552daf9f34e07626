"""The base of the C kernels that rotate heads of a packed projection."""

from dataclasses import KW_ONLY, dataclass
from typing import TypedDict

from mlxr.compiler.formats.arena import CacheGeometry
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.arena_kernel import LANES, CpuArenaKernel
from mlxr.compiler.targets.cpu.kernel_parts.kernel import Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering


@dataclass(frozen=True)
class CpuRotaryKernel(CpuArenaKernel):
    """Base of the kernels that rotate heads of the packed projection, [tokens, qkv_width] f32.

    Attributes:
        num_heads: query heads.
        own_keys: whether the projection has keys and values; else they are those of an earlier layer.
        rotary_dim: number of leading elements of a head that are rotated; if 0, there is no table.
        rope_layout: see `PackedHeads`.
        more_columns: columns of the projection behind the values, which are a gate's.
    """

    num_heads: int
    own_keys: bool
    rotary_dim: int
    rope_layout: RopeLayout
    _: KW_ONLY
    more_columns: int = 0

    @property
    def gqa_ratio(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def gqa_padded(self) -> int:
        """Query heads per KV head, rounded up to whole vectors."""
        return round_up(self.gqa_ratio, LANES)

    @property
    def qkv_width(self) -> int:
        """Columns of the packed projection."""
        values = self.arena.value_dim if self.has_values else 0
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
            return f"{keys}, {self.num_kv_heads} value heads of {self.arena.value_dim}"
        values = f", {self.num_kv_heads} value" if self.has_values else ""
        others = f", {self.num_kv_heads} key{values}" if self.own_keys else ""
        return f"{self.num_heads} query{others} heads of {self.head_dim}"

    @property
    def _inputs(self) -> tuple[Param, ...]:
        table = (Param("rope_table", "input"),) if self.rotary_dim else ()
        return (Param("qkv", "input"), *table, Param("layer", "layer"))


class RotaryFields(TypedDict):
    """The fields of a `CpuRotaryKernel`."""

    arena: CacheGeometry
    stores: tuple[int, ...]
    group: int
    num_heads: int
    own_keys: bool
    rotary_dim: int
    rope_layout: RopeLayout
    more_columns: int


def rotary_fields(lowering: CpuLowering, op: Op, attrs: PackedHeads) -> RotaryFields:
    """The fields of the kernel of an op with these attributes."""
    qkv = lowering.tensor(op.inputs["qkv"])
    return {
        "arena": lowering.cache_of(op),
        "stores": lowering.stores_of(op),
        "group": lowering.group_of(op),
        "num_heads": attrs.num_heads,
        "own_keys": attrs.has_keys(qkv),
        "rotary_dim": attrs.rotary_dim,
        "rope_layout": attrs.rope_layout,
        "more_columns": attrs.more_columns(qkv),
    }
