"""Lowers the ops of one phase to calls of C functions."""

from collections.abc import Mapping
from typing import Literal, TypedDict

from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import OpKind, RopeLayout
from mlxr.compiler.ir.ops.attention import PackedAttention, RopeAttention, RopeWriteAttention
from mlxr.compiler.ir.ops.cache import RopeCacheWrite
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.schedule.lowering import Rule
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel
from mlxr.compiler.targets.cpu.kernels.attention import CpuAttendDecode, CpuAttendPrefill, CpuCacheWrite, CpuRopeTable
from mlxr.compiler.targets.cpu.lowering import CpuLowering

ROPE_TABLE = "rope_table"
"""The buffer of the first table of rotations; a model with several has more, numbered from 2."""


class _RotaryFields(TypedDict):
    """Fields of the kernels that rotate."""

    arena: ArenaGeometry
    num_heads: int
    rotary_dim: int
    rope_layout: RopeLayout


class _AttentionFields(_RotaryFields):
    """Fields of the attention kernels."""

    scale: float
    window: int | None
    softcap: float | None
    compute: Literal["exact", "fast"]
    sinks: bool
    temperature: tuple[float, int] | None


class OpLowering(CpuLowering):
    """Lowers the ops whose kernels do not have their rules beside them yet."""

    @property
    def rules(self) -> Mapping[type[OpKind], Rule]:
        """See `Lowering.rules`."""
        return {
            **super().rules,
            RopeWriteAttention: self._attend_decode,
            RopeCacheWrite: self._cache_write,
            RopeAttention: self._attend_prefill,
        }

    def _rotary_fields(self, op: Op) -> _RotaryFields:
        attrs = op.attrs_as(PackedHeads)
        return {
            "arena": self.arena,
            "num_heads": attrs.num_heads,
            "rotary_dim": attrs.rotary_dim,
            "rope_layout": attrs.rope_layout,
        }

    def _attention_fields(self, op: Op) -> _AttentionFields:
        attrs = op.attrs_as(PackedAttention)
        return {
            **self._rotary_fields(op),
            "scale": attrs.scale,
            "window": attrs.window,
            "softcap": attrs.softcap,
            "compute": self.spec.compute,
            "sinks": "sinks" in op.inputs,
            "temperature": attrs.temperature,
        }

    def _rotated(self, op: Op, kernel: CpuKernel) -> None:
        """Adds a call that reads the table of its op's rotations, which those with the same ones share."""
        buffers = {}
        if "frequencies" in op.inputs:
            frequencies = self.value(op, "frequencies").data
            scale = op.attrs_as(PackedHeads).rope_scale
            table = CpuRopeTable(label=ROPE_TABLE, frequencies=frequencies, scale=scale)
            buffers["rope_table"] = self.table(table, ("tokens", table.rotary_dim))
        self.add_call(op, kernel, buffers)

    def _cache_write(self, op: Op) -> None:
        self._rotated(op, CpuCacheWrite(label="cache_write", **self._rotary_fields(op)))

    def _attend_decode(self, op: Op) -> None:
        self._rotated(op, CpuAttendDecode(label="attend_decode", **self._attention_fields(op)))

    def _attend_prefill(self, op: Op) -> None:
        self._rotated(op, CpuAttendPrefill(label="attend_prefill", **self._attention_fields(op)))
