"""What a block adds to the rows of x, which a kernel of a product fuses: the sums are in threadgroup memory."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.product import ADDED_PORTS, Product
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.lowering import MetalLowering


@dataclass(frozen=True)
class FusedBlock:
    """stream = (x + factor * rms_norm(added)) * added_scale; see `AddedBlock`.

    Attributes:
        eps, factor: see `AddedBlock`.
        ports: its ports.
        gives: whether the kernel also writes the sum, `stream`.
    """

    eps: float
    factor: float
    ports: tuple[Port, ...]
    gives: bool

    @property
    def types(self) -> dict[str, DType]:
        """Element types of its ports."""
        return dict(self.ports)

    @property
    def norms(self) -> int:
        """Norms of a row, one after the other."""
        return 3 if "second" in self.types else 1

    @property
    def formula(self) -> str:
        """Its formula, for the head of a kernel."""
        block = "rms_norm(added) + rms_norm(second)" if self.norms > 1 else "added"
        factor = "" if self.factor == 1 else f"{self.factor:g} * "
        total = f"x + {factor}rms_norm({block})"
        return f"stream = ({total}) * added_scale" if "added_scale" in self.types else f"stream = {total}"


def fused_block_of(lowering: MetalLowering, op: Op) -> FusedBlock | None:
    """What is added to x in an op that multiplies by a weight; None: nothing."""
    added = op.attrs_as(Product).added
    if added is None:
        return None
    ports = tuple((port, lowering.value(op, port).dtype) for port in ADDED_PORTS if port in op.inputs)
    return FusedBlock(added.eps, added.factor, ports, "stream" in op.outputs)
