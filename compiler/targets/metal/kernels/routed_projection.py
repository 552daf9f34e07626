"""The choice of experts and the first projections of the chosen ones, and those of a shared expert."""

from dataclasses import KW_ONLY, dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import (
    ExpertKernel,
    SharedMatrix,
)
from mlxr.compiler.targets.metal.kernel_parts.passes import bytes_of_sums
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import formula
from mlxr.compiler.targets.metal.kernels.route import RouteKernel


@dataclass(frozen=True)
class RoutedProjectionKernel(ExpertKernel):
    """The choice of experts, and their projections, each into its own columns of the result.

    Attributes:
        route: the choice.
        gate: the row that makes the shared expert's gate; None: it has none.
        shared_norm: type of the shared expert's own weight for the norm of x; None: it has the experts'.
    """

    template = "routed_projection.metal.jinja"
    _: KW_ONLY
    route: RouteKernel
    gate: SharedMatrix | None = None
    shared_norm: DType | None = None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, the logits and their bias, the shared expert's weights, the ports of norm and epilogue."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype), ("logits", DType.F32)]
        ports += [("selection_bias", self.route.bias)] if self.route.bias else []
        ports += [("expert_scales", self.route.scales)] if self.route.scales else []
        ports += [("shared", self.shared.layout.dtype)] if self.shared else []
        ports += [("shared_norm", self.shared_norm)] if self.shared_norm else []
        ports += [("gate_weight", self.gate.layout.dtype)] if self.gate else []
        return (*ports, *(self.norm.ports if self.norm else ()), *self.epilogue.ports, *self.dims_port)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the sums of a threadgroup's tiles."""
        return (bytes_of_sums(self) if self.passes else 0) + self.choice_bytes

    @property
    def ranks(self) -> int:
        """The threads of a threadgroup that share the choice by ranks; 0: each simdgroup chooses."""
        return 0 if self.weighs else self.route.sharing(self.threads)

    @property
    def choice_bytes(self) -> int:
        """Bytes of threadgroup memory for the choice."""
        return 4 * (self.route.num_experts + self.top_k) if self.ranks else 0

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The experts' results, the choice, and the shared expert's results."""
        ports: list[Port] = [("out", self.epilogue.out), *self.route.outputs[: 1 if self.weighs else 2]]
        ports += [("shared_out", self.epilogue.out)] if self.shared else []
        return (*ports, *([("shared_gate", DType.F32)] if self.gate else []))

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """See `MatrixKernel`."""
        return tuple(dict.fromkeys((*super().formats, *(self.gate.formats if self.gate else ()))))

    @property
    def expert_threadgroups(self) -> int:
        """Threadgroups of each chosen expert of a token."""
        return super().threadgroups

    @property
    def shared_threadgroups(self) -> int:
        """Threadgroups of the shared expert, for each token, and of its gate."""
        return sum(part.threadgroups for part in (self.shared, self.gate) if part is not None)

    @property
    def gate_threadgroup(self) -> int:
        """The threadgroup that makes the gate."""
        return self.shared.threadgroups if self.shared else 0

    @property
    def threadgroups(self) -> int:
        """Threadgroups of each token."""
        return self.shared_threadgroups + self.top_k * self.expert_threadgroups

    @property
    def formula(self) -> str:
        """The formula, for the head of the kernel."""
        x = f"{self.norm.kind}_norm(x)" if self.norm else "x"
        return f"out = {formula(self.epilogue, f'weight of the choice * {x}' if self.weighs else x)}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        experts, out = self.route.num_experts, self.epilogue.out
        rows = [f"logits     [tokens, {experts}] f32: the router's"]
        if self.route.bias:
            rows.append(f"selection_bias [{experts}] {self.route.bias}: added for the choice only")
        if self.route.scales:
            rows.append(f"expert_scales [{experts}] {self.route.scales}: multiply the weights of their experts")
        if self.shared_norm:
            rows.append(f"shared_norm [{self.in_features}] {self.shared_norm}: norm, for the shared expert")
        if self.gate:
            rows += self._rows_of("gate_weight", self.gate.layout)
        if not self.weighs:
            rows.append(f"weights    [tokens, {self.top_k}] f32")
        rows.append(f"out        [tokens, {self.top_k} * {self.out_features}] {out}")
        if self.shared:
            rows.append(f"shared_out [tokens, {self.shared.out_features}] {out}")
        if self.gate:
            rows.append("shared_gate [tokens, 1] f32")
        return self._head(f"[tokens, {self.in_features}]", *rows)
