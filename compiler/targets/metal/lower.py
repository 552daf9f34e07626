"""Lowers the ops of a phase by the rules beside the kernels, and by those of projections and prefill attention."""

from collections.abc import Mapping

from mlxr.compiler.artifact.phase_name import PhaseName
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.schedule.lowered import LoweringInput
from mlxr.compiler.schedule.lowering import Rule
from mlxr.compiler.targets.metal.lower_attention import AttentionLowering
from mlxr.compiler.targets.metal.lower_projection import ProjectionLowering
from mlxr.compiler.targets.metal.lowering import MetalLowering


class OpLowering(MetalLowering):
    """Lowers every op of a phase; attention and projections have rules in files of their own."""

    def __init__(self, given: LoweringInput, phase: PhaseName, *, one_kernel: bool) -> None:
        super().__init__(given, phase, one_kernel=one_kernel)
        self._rules: dict[type[OpKind], Rule] = {
            **super().rules,
            **ProjectionLowering(self, self.layouts, self.limits).rules,
            **AttentionLowering(self, self.limits["tokens"]).rules,
        }

    @property
    def rules(self) -> Mapping[type[OpKind], Rule]:
        """See `Lowering.rules`."""
        return self._rules
