"""What chunks of the gated delta rule need that does not depend on the states: of all chunks at once."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.delta_chunk_kernel import CHUNK, DeltaChunkKernel


@dataclass(frozen=True)
class DeltaSolveKernel(DeltaChunkKernel):
    """The matrices of each chunk of a head: corrections of values, and answers to queries."""

    template = "delta_solve.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The tokens' numbers, whose they are, and the heads' numbers."""
        return (*self.tokens, ("dims", DType.U32), ("rate", DType.F32), ("dt_bias", DType.F32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What the other kernel reads."""
        return self.between

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of a matrix with rows that lie in different banks, and of five numbers of each token."""
        return 4 * CHUNK * (CHUNK + 4) + (2 * 8 + 3 * 4) * CHUNK
