"""The first projections of the chosen experts."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertProjection
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import (
    PROJECTION_IGNORES,
    ExpertKernel,
    expert_choice,
    expert_fields,
)
from mlxr.compiler.targets.metal.kernel_parts.fused_norm import fused_norm_of
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import formula
from mlxr.compiler.targets.metal.kernels.expert_tiles import multiply_tiles, tiles_from
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@dataclass(frozen=True)
class ExpertProjectionKernel(ExpertKernel):
    """The projections of the chosen experts, each into its own columns of the result."""

    template = "expert_projection.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, the chosen experts, and the ports of norm and epilogue."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype), *self.choice_ports]
        return (*ports, *(self.norm.ports if self.norm else ()), *self.epilogue.ports)

    @property
    def formula(self) -> str:
        """The formula, for the head of the kernel."""
        x = f"{self.norm.kind}_norm(x)" if self.norm else "x"
        return f"out = {formula(self.epilogue, f'weight of the choice * {x}' if self.weighs else x)}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        out = f"out        [tokens, {self.top_k} * {self.out_features}] {self.epilogue.out}"
        return self._head(f"[tokens, {self.in_features}]", out)


@lowers(ExpertProjection)
def lower_expert_projection(lowering: MetalLowering, op: Op, _: ExpertProjection) -> None:
    """Adds the launch of the experts' first projections."""
    choice = expert_choice(lowering, op, "experts")
    kernel = ExpertProjectionKernel("experts", norm=fused_norm_of(lowering, op), **expert_fields(lowering, op, choice))
    grid = (Extent(times=kernel.threadgroups), Extent(times=kernel.top_k, dim="tokens"))
    chosen, tiled = choice.sizes(OneRow, without=PROJECTION_IGNORES), tiles_from(lowering, op)
    alone = None if tiled is None else Condition(dim="tokens", maximum=tiled - 1)
    lowering.emit(op, kernel, grid, {"out": op.out}, when=alone, chosen=chosen)
    if tiled is not None:
        multiply_tiles(lowering, op, of_tokens=True, tokens=tiled)
