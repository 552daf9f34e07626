"""Norms of recurrent layers' results, with their gates, that no kernel of the layer computes itself."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.gated_norm import GatedNorm, NormGate
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHeader, CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers

GATED_NORM = CpuHeader("gated_norm.h")
"""The norm of some columns and their gate."""


@dataclass(frozen=True)
class CpuGatedNorm(CpuKernel):
    """norm(x) * act(gate) or norm(x * act(gate)), of each piece of a row, f32.

    Attributes:
        width: columns of x.
        groups, activation, gate_first, first: see `GatedNorm`.
        eps: added to the mean square; 0: there is no norm.
        gate_width: columns of the gate's value.
        weight: whether there is one.
        piece_weights: whether each piece has its own weights, [width], or all share them, [width / groups].
    """

    template = "gated_norm.jinja"
    width: int
    groups: int
    eps: float
    activation: NormGate
    gate_first: bool
    first: int
    gate_width: int
    weight: bool
    piece_weights: bool

    @property
    def params(self) -> tuple[Param, ...]:
        """x, gate, weight, out."""
        weight = (Param("weight", "vector"),) if self.weight else ()
        return (Param("x", "input"), Param("gate", "input"), *weight, Param("out", "output"))

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """The function of a piece."""
        return (GATED_NORM,)

    @property
    def columns(self) -> int:
        """Columns of a piece."""
        return self.width // self.groups

    @property
    def formula(self) -> str:
        """The formula, for the head of the function."""
        gate = f"{self.activation}(gate)"
        if not self.eps:
            return f"{self.label}: out = x * {gate}"
        normed = f"rms_norm(x * {gate})" if self.gate_first else f"rms_norm(x) * {gate}"
        return f"{self.label}: out = {normed}{f' of {self.groups} pieces' if self.groups > 1 else ''}"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        rows = [f"x       [tokens, {self.width}] f32", f"gate    [tokens, {self.gate_width}] f32, from {self.first} on"]
        if self.weight:
            rows.append(f"weight  [{self.width if self.piece_weights else self.columns}] f32")
        rows.append(f"out     [tokens, {self.width}] f32")
        return "".join(f"//   {row}\n" for row in rows)


@lowers(GatedNorm)
def lower_gated_norm(lowering: CpuLowering, op: Op, attrs: GatedNorm) -> None:
    """Adds the call for an op."""
    width, weight = lowering.width(op, "x"), "weight" in op.inputs
    kernel = CpuGatedNorm(
        label="gated_norm",
        width=width,
        groups=attrs.groups,
        eps=attrs.eps or 0.0,
        activation=attrs.activation,
        gate_first=attrs.gate_first,
        first=attrs.first,
        gate_width=lowering.width(op, "gate"),
        weight=weight,
        piece_weights=weight and attrs.groups > 1 and lowering.width(op, "weight") == width,
    )
    lowering.add_call(op, kernel)
