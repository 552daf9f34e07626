"""The last projections of one token's experts and their sum, with weights that come through threadgroup memory."""

from dataclasses import KW_ONLY, dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernels.expert_combine import ExpertCombineKernel
from mlxr.compiler.targets.metal.kernels.expert_stream import (
    UNIT,
    StreamedExperts,
    fitting,
    stream_fields,
    streams,
)
from mlxr.compiler.targets.metal.kernels.route import RouteKernel


@dataclass(frozen=True)
class CombineStreamKernel(StreamedExperts, ExpertCombineKernel):
    """`ExpertCombineKernel` with MMA, on weights that come through threadgroup memory.

    The columns are those of all chosen experts, one after the other.

    Attributes:
        route: the choice, which the kernel makes once more, of logits that were there when the launch before began: so
            weights are on their way before x is there. None: it reads what was chosen.
    """

    template = "combine_stream.metal.jinja"
    _: KW_ONLY
    route: RouteKernel | None = None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Those of `ExpertCombineKernel`, and the logits."""
        ports = super().inputs
        return (*ports[:2], ("logits", DType.F32), *ports[2:]) if self.route else ports

    @property
    def ranks(self) -> int:
        """The threads of a threadgroup that share the choice; 0: it makes none."""
        return self.route.sharing(self.threads) if self.route else 0

    @property
    def threadgroup_bytes(self) -> int:
        """Those of a stream, and of the choice."""
        return super().threadgroup_bytes + (4 * (self.route.num_experts + self.top_k) if self.route else 0)

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


def combine_stream(kernel: ExpertCombineKernel, sizes: OneRow, route: RouteKernel | None) -> CombineStreamKernel | None:
    """The kernel with its weight through threadgroup memory, if it can and the geometry asks for that.

    Args:
        kernel: the kernel without that.
        sizes: the geometry.
        route: the choice, if its logits are there before the launch before begins.
    """
    whole = kernel.top_k * kernel.in_features % UNIT == 0 and kernel.top_k <= SIMD_WIDTH
    if not whole or kernel.skips or not streams(kernel, sizes):
        return None
    made = CombineStreamKernel(**stream_fields(kernel, sizes))
    if route is not None and route.sharing(made.threads) and (chooses := fitting(replace(made, route=route))):
        return chooses
    return fitting(made)
