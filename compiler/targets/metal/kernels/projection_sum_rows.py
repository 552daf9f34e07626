"""The sum of two products of few rows, in one launch."""

from dataclasses import KW_ONLY, dataclass, replace

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.schedule.geometry import SeveralRows
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.second_product import formula_of_second, ports_of_second, table_of_second
from mlxr.compiler.targets.metal.kernels.matmul import MatmulKernel, matmul
from mlxr.compiler.targets.metal.kernels.projection_variants import of_several
from mlxr.compiler.targets.metal.kernels.shared_expert import tokens_from
from mlxr.compiler.targets.metal.lowering import MetalLowering


@dataclass(frozen=True)
class ProjectionSumRowsKernel(MatmulKernel):
    """The sum of two projections of several rows: a simdgroup reads each of its weights once for `tile` rows of x.

    Attributes:
        second: the second projection, with as many outputs, rows and so on.
        second_bias: type of its bias; None: it has none.
    """

    template = "projection_sum_rows.metal.jinja"
    _: KW_ONLY
    second: MatmulKernel
    second_bias: DType | None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What both read; see `ProjectionKernel`."""
        return (*super().inputs, *ports_of_second(self.second, self.second_bias))

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """See `MatrixKernel`."""
        return tuple(dict.fromkeys((*super().formats, *self.second.formats)))

    @property
    def formula(self) -> str:
        """The formula, for the head of the kernel."""
        return f"{super().formula}{formula_of_second(self.second_bias)}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        return super().buffer_table + table_of_second(self.second, self.second_bias)


def add_few(
    lowering: MetalLowering, op: Op, first: ProjectionFacts, second: ProjectionFacts, larger: ProjectionFacts
) -> int:
    """Adds a launch for steps of few tokens, if one kernel suits both products; returns from how many it takes none."""
    several = [of_several(part) for part in (first, second)]
    most = min(0 if found is None else found[1] for found in several)
    if not most:
        return 2
    plain = replace(second.epilogue, bias=None, residual=False)
    of_first, of_second = (
        replace(matmul(replace(part, choice=larger.choice)), epilogue=epilogue)
        for part, epilogue in ((first, first.epilogue), (second, plain))
    )
    fields = vars(of_first) | {"label": f"{second.label}_sum_rows"}
    kernel = ProjectionSumRowsKernel(**fields, second=of_second, second_bias=second.epilogue.bias)
    grid = (Extent(times=kernel.threadgroups), Extent(dim="tokens", per=kernel.tile))
    chosen = larger.choice.sizes(SeveralRows)
    lowering.emit(op, kernel, grid, {"dims": "dims"}, when=tokens_from(lowering, 2, most), chosen=chosen)
    return most + 1
