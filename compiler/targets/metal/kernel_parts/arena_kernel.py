"""The base of the kernels that touch the KV arena."""

from dataclasses import dataclass

from mlxr.compiler.formats.arena import CacheGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import KEYS_AND_VALUES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.tensor import layer_buffer
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering


@dataclass(frozen=True)
class ArenaKernel(MetalKernel):
    """Base of the kernels that touch the arena."""

    arena: CacheGeometry

    @property
    def cache(self) -> DType:
        """Element type of the arena; of keys, where values have another."""
        return self.arena.dtype

    @property
    def value_cache(self) -> DType:
        """Element type of values."""
        return self.arena.value_dtype

    @property
    def cache_bytes(self) -> int:
        """Bytes of an element of the arena."""
        return self.cache.size_bytes

    @property
    def scaled(self) -> bool:
        """Whether a row has a scale, an f32 after its last element, that multiplies its elements."""
        return self.cache is DType.Q8

    @property
    def mixed(self) -> bool:
        """Whether each 32 elements of keys and values are mixed before they are stored, as in q4."""
        return self.arena.mixed

    @property
    def row_elements(self) -> int:
        """Elements from one head's row of a token to the next head's."""
        return self.arena.row_elements

    @property
    def value_elements(self) -> int:
        """The same of values."""
        return self.arena.value_elements

    @property
    def values_differ(self) -> bool:
        """Whether values have rows of another size than keys, and so lie elsewhere in their arena."""
        return self.arena.v_dim is not None

    @property
    def arena_ports(self) -> tuple[Port, ...]:
        """The arena's buffers, and the token that orders the access."""
        return (*zip(KEYS_AND_VALUES, (self.cache, self.value_cache), strict=True), ("token", DType.U32))


def arena_buffers(lowering: MetalLowering, op: Op) -> dict[str, str]:
    """The buffers of the ports `layer` and `token_out`, for the kernel of an op that accesses stores."""
    place = lowering.place_of(op)
    assert place is not None, "the verifier demands a layer of every op that accesses a store"
    return {"layer": layer_buffer(place), "token_out": op.outputs["token"]}
