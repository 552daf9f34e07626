"""The last projections of the chosen experts, and their sum."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertCombine
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import (
    EXPERTS_IGNORE,
    ExpertKernel,
    expert_choice,
    expert_fields,
)
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@dataclass(frozen=True)
class ExpertCombineKernel(ExpertKernel):
    """The last projections of the chosen experts, their sum, by weights if there are any, and the residual."""

    template = "expert_combine.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, the chosen experts with their weights, and the ports of the epilogue."""
        return (("x", self.activation), ("weight", self.layout.dtype), *self.choice_ports, *self.epilogue.ports)

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        rows = []
        if self.epilogue.residual:
            rows.append(f"residual   [tokens, {self.out_features}] {self.epilogue.out}")
        rows.append(f"out        [tokens, {self.out_features}] {self.epilogue.out}")
        return self._head(f"[tokens, {self.top_k} * {self.in_features}]", *rows)


@lowers(ExpertCombine)
def lower_expert_combine(lowering: MetalLowering, op: Op, _: ExpertCombine) -> None:
    """Adds the launch of the experts' last projections and their sum."""
    choice = expert_choice(lowering, op, "experts_down")
    kernel = ExpertCombineKernel("experts_down", norm=None, **expert_fields(lowering, op, choice))
    grid = (Extent(times=kernel.threadgroups), Extent(dim="tokens"))
    lowering.emit(op, kernel, grid, {"out": op.out}, chosen=choice.sizes(OneRow, without=EXPERTS_IGNORE))
