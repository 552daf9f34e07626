"""The last projections of the chosen experts, and their sum."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import (
    ExpertKernel,
)


@dataclass(frozen=True)
class ExpertCombineKernel(ExpertKernel):
    """The last projections of the chosen experts and their sum, a shared expert's, and the residual.

    Attributes:
        shared_gate: type of the gate, [tokens, 1], whose sigmoid multiplies the shared expert's result; None: no gate.
        apart: whether the shared expert's result is an output of its own, of the first threadgroups of each token.
    """

    template = "expert_combine.metal.jinja"
    shared_gate: DType | None = None
    apart: bool = False

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The sum and, apart from it, the shared expert's result."""
        return (*super().outputs, ("shared_out", self.epilogue.out)) if self.apart else super().outputs

    @property
    def together(self) -> bool:
        """Whether the simdgroups of a threadgroup have a token each, and share reads of the shared expert's weight."""
        return self.shared is not None and self.shared.tile > 1 and not self.apart

    @property
    def outs_per_threadgroup(self) -> int:
        """Outputs of a threadgroup, for each of its tokens."""
        return self.outs if self.together else super().outs_per_threadgroup

    @property
    def shared_threadgroups(self) -> int:
        """Threadgroups of the shared expert alone, for each token."""
        return self.shared.threadgroups if self.apart and self.shared else 0

    @property
    def threadgroups(self) -> int:
        """Threadgroups of each token."""
        return self.shared_threadgroups + super().threadgroups

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the sums of simdgroups that share columns."""
        if self.together:
            return 4 * self.simdgroups**2 * self.outs
        twice = self.apart and self.shared is not None and self.shared.split > 1
        return self.simdgroups * self.sums * 4 * (2 if twice else 1) if self.split > 1 else 0

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, the chosen experts with their weights, the shared expert, and the ports of the epilogue."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype), *self.choice_ports]
        if self.shared:
            ports += [("shared_x", self.activation), ("shared", self.shared.layout.dtype)]
        if self.shared_gate:
            ports.append(("shared_gate", self.shared_gate))
        return (*ports, *self.epilogue.ports, *self.dims_port)

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        rows = []
        if self.shared:
            rows.append(f"shared_x   [tokens, {self.shared.in_features}] {self.activation}")
        if self.shared_gate:
            rows.append(f"shared_gate [tokens, 1] {self.shared_gate}")
        if self.epilogue.residual:
            rows.append(f"residual   [tokens, {self.out_features}] {self.epilogue.out}")
        if self.apart:
            rows.append(f"shared_out [tokens, {self.out_features}] {self.epilogue.out}")
        rows.append(f"out        [tokens, {self.out_features}] {self.epilogue.out}")
        return self._head(f"[tokens, {self.top_k} * {self.in_features}]", *rows)
