"""The base of the kernels that touch the KV arena."""

from dataclasses import dataclass

from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.buffers import ARENAS, layer_buffer
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import MetalKernel


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
        """Whether a row has a scale, an f32 after its last element, that multiplies its elements."""
        return self.cache is DType.Q8

    @property
    def row_elements(self) -> int:
        """Elements from one head's row of a token to the next head's."""
        return self.arena.row_elements

    @property
    def arena_ports(self) -> tuple[Port, ...]:
        """The arena's buffers, and the token that orders the access."""
        return (*((arena, self.cache) for arena in ARENAS), ("token", DType.U32))


def arena_buffers(op: Op) -> dict[str, str]:
    """The buffers of the ports `layer` and `token_out`, for the kernel of an op that accesses the arena."""
    assert op.layer is not None, "the verifier demands a layer of every op that accesses the arena"
    return {"layer": layer_buffer(op.layer), "token_out": op.outputs["token"]}
