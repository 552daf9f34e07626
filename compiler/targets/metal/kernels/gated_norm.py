"""Norms of recurrent layers' results, with their gates, that no kernel of the layer computes itself."""

from dataclasses import dataclass
from typing import ClassVar

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.gated_norm import GatedNorm, NormGate
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.row_kernel import RowKernel
from mlxr.compiler.targets.metal.kernel_parts.row_sums import QUAD, sums_bytes
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns, row_count


@dataclass(frozen=True)
class GatedNormKernel(RowKernel):
    """norm(x) * act(gate) or norm(x * act(gate)), of each of `groups` equal pieces of a row.

    Attributes:
        width: columns of x.
        groups, eps, act, gate_first, first: `groups`, `eps`, `activation`, `gate_first` and `first` of `GatedNorm`.
        gate_width: columns of the gate's value.
        shared: whether all pieces have one weight [width / groups]; otherwise the weight is [width].
        weight: element type of the weight; None: there is none.
        activation: element type of x, the gate and the result.
    """

    template = "gated_norm.metal.jinja"
    kind: ClassVar[str] = "rms"
    width: int
    groups: int
    eps: float | None
    act: NormGate
    gate_first: bool
    first: int
    gate_width: int
    shared: bool
    weight: DType | None
    activation: DType

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the gate, and the weight if there is one."""
        ports = (("x", self.activation), ("gate", self.activation))
        return (*ports, ("weight", self.weight)) if self.weight else ports

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The result."""
        return (("out", self.activation),)

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """The vector loads that it needs: element type, and elements of a load."""
        return tuple((str(dtype), QUAD) for dtype in (self.activation, self.weight) if dtype)

    @property
    def piece(self) -> int:
        """Columns of a piece."""
        return self.width // self.groups

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the simdgroups' sums."""
        return 0 if self.eps is None else sums_bytes("rms", self.simdgroups)


@lowers(GatedNorm)
def lower_gated_norm(lowering: MetalLowering, op: Op, attrs: GatedNorm) -> None:
    """Adds the launch.

    Raises:
        PlanError: the pieces of a row, or of its gates, cannot be read 4 elements at a time.
    """
    x, gate = lowering.value(op, "x"), lowering.value(op, "gate")
    width = num_columns(x)
    if any(number % QUAD for number in (width // attrs.groups, attrs.first, num_columns(gate))):
        raise PlanError(
            f"op {op.name!r} normalises groups of {width // attrs.groups} columns by gates from column {attrs.first} "
            f"of {num_columns(gate)} on, and Metal kernels read {QUAD} at a time: compile with --target cpu"
        )
    kernel = GatedNormKernel(
        "gated_norm",
        width=width,
        groups=attrs.groups,
        eps=attrs.eps,
        act=attrs.activation,
        gate_first=attrs.gate_first,
        first=attrs.first,
        gate_width=num_columns(gate),
        shared="weight" in op.inputs and lowering.value(op, "weight").shape != (width,),
        weight=lowering.optional_dtype(op, "weight"),
        activation=x.dtype,
    )
    lowering.emit(op, kernel, (Extent(times=attrs.groups), row_count(x)), {"out": op.out})
