"""The write of rotated keys, and of values, into the KV arena."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.cache import RopeCacheWrite
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.targets.cpu.kernel_parts.kernel import Param
from mlxr.compiler.targets.cpu.kernel_parts.rotary_kernel import CpuRotaryKernel, rotary_fields
from mlxr.compiler.targets.cpu.kernels.rope_table import rope_table_buffers
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuCacheWrite(CpuRotaryKernel):
    """Prefill: rotates K, and stores K and V."""

    template = "cache_write.jinja"

    @property
    def params(self) -> tuple[Param, ...]:
        """The packed projection, the table of rotations and the layer."""
        return self._inputs


def call_cache_write(lowering: CpuLowering, op: Op, attrs: PackedHeads) -> None:
    """Adds the call for an op that writes K and V."""
    kernel = CpuCacheWrite(label="cache_write", **rotary_fields(lowering, op, attrs))
    lowering.add_call(op, kernel, rope_table_buffers(lowering, op, attrs.rope_scale))


@lowers(RopeCacheWrite)
def lower_cache_write(lowering: CpuLowering, op: Op, attrs: RopeCacheWrite) -> None:
    """Adds the call for an op."""
    call_cache_write(lowering, op, attrs)
