"""Writes of a prefill step into the arena."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.cache import RopeCacheWrite
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernel_parts.rope_kernel import RopeKernel, rope_fields
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@dataclass(frozen=True)
class RopeCacheWriteKernel(RopeKernel):
    """Rotates the keys of a prefill step, and stores its keys and values in the arena."""

    template = "rope_cache_write.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The packed projection, positions and slots of the tokens, the layer, and the arena."""
        places = (("positions", DType.I32), ("slots", DType.I32), ("layer", DType.U32))
        return (("qkv", self.activation), *places, *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The token."""
        return (("token_out", DType.U32),)

    @property
    def threads(self) -> int:
        """A thread for each element, up to 256; in q8 and q4 a simdgroup for each row of K or V, up to 8."""
        if self.scaled or self.mixed:
            return SIMD_WIDTH * min(8, 2 * self.num_kv_heads)
        return min(256, round_up(self.num_kv_heads * max(self.head_dim, self.value_dim), SIMD_WIDTH))

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup."""
        return self.threads // SIMD_WIDTH

    @property
    def quads(self) -> int:
        """Vectors of 4 elements of a row that a lane stores in q8 or q4."""
        return -(-max(self.head_dim, self.value_dim) // (4 * SIMD_WIDTH))


@lowers(RopeCacheWrite)
def lower_rope_cache_write(lowering: MetalLowering, op: Op, _: RopeCacheWrite) -> None:
    """Adds the launch of a write into the arena."""
    kernel = RopeCacheWriteKernel("rope_cache_write", **rope_fields(lowering, op))
    lowering.emit(op, kernel, (Extent(dim="tokens"),), arena_buffers(lowering, op))
