"""Lowers the ops of one phase to launches of Metal kernels.

The rule of each op kind is next to its kernel, in a module of the folder `kernels`, and registers itself with `lowers`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.ir.graph import Op, Value
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.tensor import Tensor
from mlxr.compiler.schedule.lowered import LoweringInput
from mlxr.compiler.schedule.lowering import Lowering, Rule
from mlxr.compiler.schedule.lowering_rules import LoweringRules
from mlxr.compiler.targets.epilogue import Epilogue, epilogue_of

RULES: LoweringRules["MetalLowering"] = LoweringRules("mlxr.compiler.targets.metal.kernels")
lowers = RULES.lowers
"""Registers the rule of an op kind."""


class MetalLowering(Lowering):
    """Lowers the graph of one phase to Metal kernels.

    Attributes:
        table: the geometry of each launch.
        layouts: the buffers of the weights, by name.
        limits: the largest batch of the phase.
        one_kernel: whether decode steps may become one kernel, whose parts share their registers.
        is_recorded: see `LoweringInput`.
        deterministic: whether all steps are to give the same bits: one arithmetic, no functions of MLX.
    """

    def __init__(self, inputs: LoweringInput, phase: PhaseName, *, one_kernel: bool) -> None:
        super().__init__(inputs.graphs[phase], phase, inputs.arena)
        self.table = inputs.table
        self.layouts = {weight.name: weight.layout for weight in inputs.weights}
        self.limits = inputs.limits[phase]
        self.one_kernel, self.is_recorded = one_kernel, inputs.is_recorded
        self.deterministic = inputs.spec.deterministic

    @property
    def rules(self) -> Mapping[type[OpKind], Rule]:
        """See `Lowering.rules`."""
        return RULES.bound_to(self)

    def epilogue_of(self, op: Op) -> Epilogue:
        """The epilogue of a projection.

        Its `times_first` counts from the columns of the layer of this number: layers of a stage have the same kernels.
        """
        times = num_columns(self.value(op, "times")) if "times" in op.inputs else 0
        out = self.graph.value(op.out)
        epilogue = epilogue_of(op, out.dtype, partial(self.optional_dtype, op), times)
        if epilogue.times_first is None:
            return epilogue
        assert op.layer is not None, "columns are those of a layer"
        return replace(epilogue, times_first=epilogue.times_first - op.layer * num_columns(out))


def row_count(value: Value | Tensor) -> Extent:
    """One threadgroup for each row of a value: for each token, or for each row of logits."""
    return Extent(dim="tokens" if value.shape[0] == "tokens" else "rows")


def num_columns(value: Value) -> int:
    """Columns of a value [rows, columns]."""
    columns = value.shape[1]
    assert isinstance(columns, int), f"{value.name}: only rows are symbolic"
    return columns
