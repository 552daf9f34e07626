"""Drafts of launches, and what the rules that lower ops to them share."""

from dataclasses import dataclass

from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.passes.pipeline import Step
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.targets.metal.kernels.kernel import Kernel

ONE = Extent()


@dataclass(frozen=True)
class Draft:
    """A launch before its kernel is rendered and named; fields as in `Launch`."""

    op: str
    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    threadgroups: tuple[Extent, Extent, Extent]
    when: Condition | None = None
    mlx: tuple[Condition, ...] = ()
    mlx_inputs: tuple[tuple[str, str], ...] = ()
    feeds_mlx: bool = False
    chosen: ChosenGeometry | None = None


@dataclass(frozen=True)
class Scratch:
    """A buffer between two launches of one op."""

    name: str
    shape: Shape
    dtype: DType


def layer_buffer(layer: object) -> str:
    """The constant buffer that tells a kernel its layer."""
    return f"layer.{layer}"


class Drafting:
    """The launches and scratch buffers of one step's graph, as its rules collect them.

    Attributes:
        graph, step: what is lowered.
        arena: the KV arena.
        table: the geometry of each launch.
        one_kernel: whether a decode step of one token may be one kernel, whose parts share their registers.
        drafts, scratch: the launches and scratch buffers so far.
    """

    def __init__(
        self, graph: OpGraph, step: Step, arena: ArenaGeometry, table: GeometryTable, one_kernel: bool = False
    ) -> None:
        self.graph = graph
        self.step = step
        self.arena = arena
        self.table = table
        self.one_kernel = one_kernel
        self.drafts: list[Draft] = []
        self.scratch: list[Scratch] = []

    def emit(
        self, op: Op, kernel: Kernel, grid: tuple[Extent, ...], buffers: dict[str, str], **options: object
    ) -> None:
        """Adds a launch.

        Args:
            op: what it computes; its inputs are bound to the kernel's ports of the same names.
            kernel: what is launched.
            grid: threadgroups along one to three axes.
            buffers: buffers of the other ports, the kernel's outputs among them.
            options: other fields of the draft.
        """
        names = dict(op.inputs) | buffers
        self.drafts.append(
            Draft(
                op.name,
                kernel,
                tuple(names[port] for port, _ in kernel.inputs),
                tuple(buffers[port] for port, _ in kernel.outputs),
                (*grid, *(ONE,) * (3 - len(grid))),  # type: ignore[arg-type]
                **options,  # type: ignore[arg-type]
            )
        )

    def value(self, op: Op, port: str) -> Value:
        """The value that an op's input port is bound to."""
        return self.graph.value(op.inputs[port])

    def optional_dtype(self, op: Op, port: str) -> DType | None:
        """The element type of an optional input; None where it is not bound."""
        return self.value(op, port).dtype if port in op.inputs else None
