"""What low-rank adapters add to finished sums, and the steps after these."""

from dataclasses import dataclass
from itertools import accumulate

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.adapter import AdapterUp, adapted
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.kernel import MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@dataclass(frozen=True)
class AdapterPart:
    """The columns of one projection: its number, the first one, how many, and the one after the last."""

    number: int
    first: int
    width: int
    end: int


@dataclass(frozen=True)
class AdapterUpKernel(MetalKernel):
    """What adapters add to finished sums, and the steps after these: a thread makes one output.

    Attributes:
        widths: columns of each part.
        rank, slots: see `AdapterUp`.
        activation: element type of the sums.
        epilogue: the steps.
    """

    template = "adapter_up.metal.jinja"
    widths: tuple[int, ...]
    rank: int
    slots: int
    activation: DType
    epilogue: Epilogue

    reduces_scale = False  # sums are finished

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The sums, low rows, the matrices of all adapters, each token's adapter, and what the steps read."""
        own: tuple[Port, ...] = (("x", self.activation), ("low", DType.F32), ("lift", DType.F16))
        return (*own, ("adapter_ids", DType.I32), *self.epilogue.ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The result."""
        return (("out", self.epilogue.out),)

    @property
    def parts(self) -> tuple[AdapterPart, ...]:
        """The parts; if gated, the gate's and the up projection's."""
        ends = list(accumulate(self.widths))
        return tuple(
            AdapterPart(number, end - width, width, end)
            for number, (width, end) in enumerate(zip(self.widths, ends, strict=True))
        )

    @property
    def features(self) -> int:
        """Columns of the sums."""
        return sum(self.widths)

    @property
    def out_features(self) -> int:
        """Columns of the result."""
        return self.features // self.epilogue.halves

    @property
    def threads(self) -> int:
        """A thread for each of so many columns."""
        return 256

    @property
    def threadgroups(self) -> int:
        """Threadgroups of a token."""
        return -(-self.out_features // self.threads)


@lowers(AdapterUp)
def lower_adapter_up(lowering: MetalLowering, op: Op, attrs: AdapterUp) -> None:
    """Adds the launch of an op."""
    x, epilogue = lowering.value(op, "x"), lowering.epilogue_of(op)
    kernel = AdapterUpKernel(
        f"{adapted(op, 'lift')}_adapted", attrs.part_widths, attrs.rank, attrs.slots, x.dtype, epilogue
    )
    lowering.emit(op, kernel, (Extent(times=kernel.threadgroups), Extent(dim="tokens")), {"out": op.out})
