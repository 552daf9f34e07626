"""The sum of two products: of one row and of few in one launch, of many in two."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.ir.ops.projection_sum import ProjectionSum, parts_of
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.passes import bytes_of_sums, keeps_columns, passes_of, tiles_of
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts, facts_of
from mlxr.compiler.targets.metal.kernel_parts.second_product import formula_of_second, ports_of_second, table_of_second
from mlxr.compiler.targets.metal.kernels.matvec import MatvecKernel, matvec
from mlxr.compiler.targets.metal.kernels.projection import lower_projection
from mlxr.compiler.targets.metal.kernels.projection_sum_rows import add_few
from mlxr.compiler.targets.metal.kernels.shared_expert import ALONE, multiply_together, takes_several
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@dataclass(frozen=True)
class ProjectionSumKernel(MatvecKernel):
    """The sum of two projections of one row each: a simdgroup adds up the products with its rows of both weights.

    Attributes:
        second: the second projection, with as many outputs, simdgroups and so on.
        second_bias: type of its bias; None: it has none.
    """

    template = "projection_sum.metal.jinja"
    _: KW_ONLY
    second: MatvecKernel
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
    def threadgroup_bytes(self) -> int:
        """Bytes of the sums of simdgroups that share columns; of passes, those of both products."""
        return bytes_of_sums(self) + bytes_of_sums(self.second) if self.passes else super().threadgroup_bytes

    @property
    def formula(self) -> str:
        """The formula, for the head of the kernel."""
        return f"{super().formula}{formula_of_second(self.second_bias)}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        return super().buffer_table + table_of_second(self.second, self.second_bias)


@lowers(ProjectionSum)
def lower_projection_sum(lowering: MetalLowering, op: Op, _: ProjectionSum) -> None:
    """Adds a launch for steps of one token and one for few, and for others those of both products."""
    between = f"{op.name}.first"
    first, second = parts_of(op, between)
    first = replace(first, name=between, outputs=op.outputs)  # facts are found by a result of the graph
    facts = facts_of(lowering, first), facts_of(lowering, second)
    larger = max(facts, key=lambda part: part.layout.size_bytes)
    if any(part.choice.geometry.one_row.mma for part in facts):
        _add_apart(lowering, op, (first, second), between, lower_projection)
        return
    kernel = _of_one_row(*facts, larger)
    unused = OneRow.names("mma", "stages", *(() if _keep_columns(kernel, kernel.second) else ("threadgroups",)))
    grid, chosen = (Extent(times=kernel.threadgroups),), larger.choice.sizes(OneRow, without=unused)
    few = takes_several(lowering)
    lowering.emit(op, kernel, grid, when=ALONE if few else None, chosen=chosen)
    if few:
        least = add_few(lowering, op, *facts, larger)
        if least <= lowering.limits["tokens"]:
            _add_apart(lowering, op, (first, second), between, lambda of, part, _: multiply_together(of, part, least))


def _of_one_row(first: ProjectionFacts, second: ProjectionFacts, larger: ProjectionFacts) -> ProjectionSumKernel:
    """The kernel of one row, with the geometry of the larger weight."""
    threadgroups = larger.choice.geometry.one_row.threadgroups
    plain = replace(second.epilogue, bias=None, residual=False)
    kernel = matvec(replace(first, choice=larger.choice))
    added = matvec(replace(second, choice=larger.choice, epilogue=plain))
    if threadgroups and _keep_columns(kernel, added):
        passes = passes_of(tiles_of(kernel), threadgroups)
        kernel, added = replace(kernel, passes=passes), replace(added, passes=passes)
    fields = vars(kernel) | {"label": f"{second.label}_sum"}
    return ProjectionSumKernel(**fields, second=added, second_bias=second.epilogue.bias)


def _keep_columns(*kernels: MatvecKernel) -> bool:
    return all(keeps_columns(kernel) for kernel in kernels)


def _add_apart(
    lowering: MetalLowering,
    op: Op,
    parts: tuple[Op, Op],
    between: str,
    lower: Callable[[MetalLowering, Op, Projection], None],
) -> None:
    """Adds the launches of both products, each by `lower`."""
    out, begin = lowering.graph.value(op.out), len(lowering.pending)
    lowering.scratch.append(Scratch(between, out.shape, out.dtype))
    lower(lowering, parts[0], parts[0].attrs_as(Projection))
    lowering.pending[begin:] = [
        replace(launch, op=op.name, outputs=tuple(between if name == op.out else name for name in launch.outputs))
        for launch in lowering.pending[begin:]
    ]
    lower(lowering, parts[1], parts[1].attrs_as(Projection))
