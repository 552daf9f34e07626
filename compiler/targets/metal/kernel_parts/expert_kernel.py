"""The base of the experts' kernels, which read only the rows of a token's chosen experts."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import TypedDict

from mlxr.compiler.artifact.site import Site
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import WeightLayout
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertProduct, RoutedProjection
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.fused_norm import fused_norm_of
from mlxr.compiler.targets.metal.kernel_parts.matrix_kernel import MatrixKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering

SUM_IGNORES = OneRow.names("mma", "stages")
"""Flat names of the one-row sizes that have no effect on the kernel that sums experts' results."""
PROJECTION_IGNORES = OneRow.names("mma", "stages", "split")
"""The same of the experts' first projections, whose columns are shared only if few threadgroups take all rows."""


_PLAIN_OUTPUTS = 4
"""Rows of a simdgroup where the geometry asks for MMA and the kernel cannot have it."""


@dataclass(frozen=True)
class SharedMatrix(MatrixKernel):
    """What templates read of a weight that every token is multiplied with, in a kernel of experts; no kernel itself.

    Attributes:
        tile: tokens that share a read of the weight; 1: each token is multiplied by itself.
    """

    template = ""
    inputs = ()
    _: KW_ONLY
    tile: int = 1


@dataclass(frozen=True)
class ExpertKernel(MatrixKernel):
    """Base of the experts' kernels.

    Attributes:
        out_features: outputs of one expert. The weight has the rows of all experts, one expert after the other.
        num_experts: experts of the weight.
        top_k: experts of a token.
        skips: whether a choice may be -1, an expert of another rank: its results are neither computed nor read.
        weighs: whether experts have weights.
        shared: the shared expert's matrix; None: there is none in this kernel.
    """

    num_experts: int
    top_k: int
    skips: bool = False
    weighs: bool = False
    shared: SharedMatrix | None = None

    def __post_init__(self) -> None:
        """Checks that the rows of all experts lie in the same way."""
        assert self.matrix_rows == self.num_experts * self.out_features, f"{self.label}: rows of the weight"
        borders = {s.first_row for s in self.layout.segments}
        assert borders <= {half * self.matrix_rows for half in range(self.epilogue.halves)}, f"{self.label}: segments"

    @property
    def choice_ports(self) -> tuple[Port, ...]:
        """The chosen experts, and their weights if they have any."""
        weights: tuple[Port, ...] = (("weights", DType.F32),) if self.weighs else ()
        return (("experts", DType.I32), *weights)

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """See `MatrixKernel`."""
        return tuple(dict.fromkeys((*super().formats, *(self.shared.formats if self.shared else ()))))

    @property
    def read_dtypes(self) -> tuple[DType, ...]:
        """See `MatrixKernel`."""
        return tuple(dict.fromkeys((*super().read_dtypes, *(self.shared.read_dtypes if self.shared else ()))))

    @property
    def dims_port(self) -> tuple[Port, ...]:
        """The number of tokens, where several share a read of the shared expert's weight."""
        return (("dims", DType.U32),) if self.shared and self.shared.tile > 1 else ()

    def _head(self, x: str, *rows: str) -> str:
        """The table of buffers: x has the shape `x`, and `rows` are lines for the subclass's own buffers."""
        skipped = "; -1: another rank's" if self.skips else ""
        weights = [f"weights    [tokens, {self.top_k}] f32"] if self.weighs else []
        table = [*self._matrix_table(x), f"experts    [tokens, {self.top_k}] i32{skipped}", *weights, *rows]
        if self.epilogue.bias:
            table.append(f"bias       [{self.layout.rows}] {self.epilogue.bias}")
        if self.shared:
            table += self._rows_of("shared", self.shared.layout)
        if self.dims_port:
            table.append("dims       [8] u32: tokens, seqs, rows, tiles")
        return "".join(f"//   {row}\n" for row in table)


class ExpertFields(TypedDict):
    """The fields of the experts' kernels that follow from the op and its geometry."""

    in_features: int
    out_features: int
    layout: WeightLayout
    activation: DType
    epilogue: Epilogue
    outs: int
    simdgroups: int
    unroll: int
    num_experts: int
    top_k: int
    skips: bool
    weighs: bool
    shared: SharedMatrix | None


def expert_choice(lowering: MetalLowering, op: Op, label: str) -> Choice:
    """The geometry of an op's kernel.

    Raises:
        PlanError: it asks for matrix instructions, but no kernel multiplies experts with them.
    """
    experts = op.attrs_as(ExpertProduct)
    choice = lowering.table.choose(Site.of_weight(label, lowering.layouts[op.inputs["weight"]], experts.num_experts))
    if choice.geometry.one_row.mma and not choice.geometry.one_row.stages:
        raise PlanError(f"geometry: matvec_mma is 1 for {choice.site}, but experts have no such kernel; set it to 0")
    return choice


def expert_fields(lowering: MetalLowering, op: Op, choice: Choice) -> ExpertFields:
    """The fields of an op's kernel."""
    layout, epilogue, g = lowering.layouts[op.inputs["weight"]], lowering.epilogue_of(op), choice.geometry.one_row
    experts = op.attrs_as(ExpertProduct)
    return {
        "in_features": layout.columns,
        "out_features": layout.rows // epilogue.halves // experts.num_experts,
        "layout": layout,
        "activation": lowering.value(op, "x").dtype,
        "epilogue": epilogue,
        "outs": max(1, (_PLAIN_OUTPUTS if g.mma else g.outputs) // epilogue.halves),
        "simdgroups": g.simdgroups,
        "unroll": g.unroll,
        "num_experts": experts.num_experts,
        "top_k": experts.top_k,
        "skips": experts.routed(lowering.graph.use(op)) > experts.num_experts,
        "weighs": "weights" in op.inputs or (isinstance(experts, RoutedProjection) and experts.weighs),
        "shared": shared_matrix(lowering, op, _of_shared(epilogue, experts), g) if "shared" in op.inputs else None,
    }


def _of_shared(epilogue: Epilogue, experts: ExpertProduct) -> Epilogue:
    """The steps after the sums of a shared expert."""
    return replace(epilogue, limit=experts.shared_limit) if isinstance(experts, RoutedProjection) else epilogue


def shared_matrix(
    lowering: MetalLowering, op: Op, epilogue: Epilogue, sizes: OneRow, port: str = "shared"
) -> SharedMatrix:
    """A weight that every token is multiplied with.

    Args:
        lowering: of the phase.
        op: the op of the experts, which reads it too.
        epilogue: the steps after the experts' sums, of which the activation is its own, too.
        sizes: the experts' geometry.
        port: the op's port for the weight.
    """
    layout, norm = lowering.layouts[op.inputs[port]], fused_norm_of(lowering, op)
    if norm is not None and "shared_norm" in op.inputs:
        norm = replace(norm, weight=lowering.value(op, "shared_norm").dtype)
    return SharedMatrix(
        port,
        in_features=layout.columns,
        out_features=layout.rows // epilogue.halves,
        layout=layout,
        activation=lowering.value(op, "x").dtype,
        norm=norm,
        epilogue=replace(epilogue, bias=None, residual=False),
        outs=min(max(1, sizes.outputs // epilogue.halves), layout.rows // epilogue.halves),
        simdgroups=sizes.simdgroups,
        unroll=sizes.unroll,
    )
