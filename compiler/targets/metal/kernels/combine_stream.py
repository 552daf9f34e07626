"""The last projections of one token's experts and their sum, with weights that come through threadgroup memory."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernels.expert_combine import ExpertCombineKernel
from mlxr.compiler.targets.metal.kernels.expert_stream import (
    UNIT,
    StreamedExperts,
    fitting,
    stream_fields,
    streams,
)


@dataclass(frozen=True)
class CombineStreamKernel(StreamedExperts, ExpertCombineKernel):
    """`ExpertCombineKernel` with MMA, on weights that come through threadgroup memory.

    The columns are those of all chosen experts, one after the other.
    """

    template = "combine_stream.metal.jinja"

    @property
    def units(self) -> int:
        """Units of the columns of all chosen experts."""
        return self.top_k * self.in_features // UNIT

    @property
    def blocks(self) -> int:
        """Blocks of a row of one expert."""
        return self.in_features // self.format.block_elements

    @property
    def parts(self) -> int:
        """See `StreamedExperts`: x may have 16 bits, but not x times a weight."""
        return 2 if self.weighs or self.activation is DType.F32 else 1


def combine_stream(kernel: ExpertCombineKernel, sizes: OneRow) -> CombineStreamKernel | None:
    """The kernel with its weight through threadgroup memory, if it can and the geometry asks for that."""
    whole = kernel.top_k * kernel.in_features % UNIT == 0 and kernel.top_k <= SIMD_WIDTH
    if not whole or kernel.skips or not streams(kernel, sizes):
        return None
    return fitting(CombineStreamKernel(**stream_fields(kernel, sizes)))
