"""x as f16 numbers, for the products of many choices of each expert."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.kernels.expert_codes import BLOCK
from mlxr.compiler.targets.metal.kernels.expert_wide import ExpertWideKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering

_MOST_SIMDGROUPS = 8


@dataclass(frozen=True)
class ExpertNumbersKernel(MetalKernel):
    """Rows of x as f16 numbers, for products of experts' choices.

    Attributes:
        rows: of a token.
        columns: of a row.
        activation: element type of x.
        format: the weight's, which says in which order columns are multiplied.
    """

    template = "expert_numbers.metal.jinja"
    rows: int
    columns: int
    activation: DType
    format: WeightFormat

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Rows of x."""
        return (("x", self.activation),)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The numbers, and what scales products of them back."""
        return (("out", DType.F16), ("backs", DType.F32))

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup, each with rows of its own."""
        return min(self.rows, _MOST_SIMDGROUPS)

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def units(self) -> int:
        """Blocks of columns."""
        return self.columns // BLOCK


def numbers_of(lowering: MetalLowering, op: Op, kernel: ExpertWideKernel, x: str, when: Condition) -> dict[str, str]:
    """Adds the launch that makes numbers of x; returns the buffers that the product reads."""
    assert kernel.experts is not None, "it multiplies choices"
    rows = 1 if kernel.experts.of_tokens else kernel.experts.top_k
    label = "experts_numbers" if kernel.experts.of_tokens else "experts_down_numbers"
    made = ExpertNumbersKernel(label, rows, kernel.in_features, kernel.activation, kernel.format)
    numbers, backs = f"{op.name}.numbers", f"{op.name}.backs"
    lowering.scratch.append(Scratch(numbers, ("tokens", rows * kernel.in_features), DType.F16))
    lowering.scratch.append(Scratch(backs, ("tokens", rows), DType.F32))
    lowering.emit(op, made, (Extent(dim="tokens"),), {"x": x, "out": numbers, "backs": backs}, when=when)
    return {"x": numbers, "backs": backs}
