"""The base of the kernels of latent attention."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.ops.rope import Temperature
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import ArenaKernel
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.scores import query_scale


@dataclass(frozen=True)
class LatentKernel(ArenaKernel):
    """Base of the kernels that attend to rows of latents.

    Attributes:
        activation: element type of queries and results.
        scale: factor of the scores.
        temperature: see `AttentionKernel`.
    """

    activation: DType
    scale: float
    temperature: Temperature | None

    @property
    def row_dim(self) -> int:
        """Elements of a row, and of a query."""
        return self.arena.head_dim

    @property
    def quads(self) -> int:
        """Vectors of 4 elements of a row that a lane holds, the last one perhaps past its end."""
        return quads_of_lane(self.row_dim)

    @property
    def unroll(self) -> int:
        """Keys that a simdgroup loads and scores at once."""
        return 2

    @property
    def query_scale(self) -> float:
        """Factor of the queries: it makes scores ready for exp2."""
        return query_scale(self.scale, None)


def quads_of_lane(elements: int) -> int:
    """Vectors of 4 elements that a lane holds of so many elements."""
    return -(-elements // (4 * SIMD_WIDTH))
