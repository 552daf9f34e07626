"""Lowers the ops of one phase to calls of C functions. The rules are next to their kernels, in `kernels`."""

from collections.abc import Mapping

from mlxr.compiler.artifact.launch import ROWS_WANTED
from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.schedule.lowered import LoweringInput
from mlxr.compiler.schedule.lowering import Lowering, Rule, Scratch
from mlxr.compiler.schedule.lowering_rules import LoweringRules
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel
from mlxr.compiler.targets.cpu.kernel_parts.matrix import Compute


class CpuLowering(Lowering):
    """Lowers the graph of one phase.

    Attributes:
        spec: the spec.
        max_tokens, phase_tokens: the most tokens of a batch of any phase, and of this one.
        shapes: shape of every tensor of the model, by name.
    """

    def __init__(self, inputs: LoweringInput, phase: PhaseName) -> None:
        super().__init__(inputs.graphs[phase], phase, inputs.arena)
        self.spec = inputs.spec
        self.max_tokens = max(limits["tokens"] for limits in inputs.limits.values())
        self.phase_tokens = inputs.limits[phase]["tokens"]
        self.shapes = inputs.shapes
        self._tables: dict[CpuKernel, str] = {}

    @property
    def compute(self) -> Compute:
        """What kernels may round: see `CpuMatrixKernel`."""
        return "steady" if self.spec.deterministic and self.spec.compute == "fast" else self.spec.compute

    def stores_of(self, op: Op) -> tuple[int, ...]:
        """The numbers of the allocations that an op accesses, in the order in which the program has their addresses."""
        names = [allocation.name for allocation in self.arena.allocations]
        return tuple(names.index(op.inputs[port]) for port in op.attrs.accesses)

    def group_of(self, op: Op) -> int:
        """The number of the group whose blocks an op accesses."""
        group = None if op.layer is None else self.arena.group_of(op.layer)
        assert group is not None, f"{op.name} keeps nothing of tokens"
        return group

    @property
    def rules(self) -> Mapping[type[OpKind], Rule]:
        """See `Lowering.rules`."""
        return RULES.bound_to(self)

    def lower_ops(self) -> None:
        """Lowers every op. The tables that they read come first."""
        super().lower_ops()
        self.pending[:0] = [PendingLaunch(name, table, (), (name,)) for table, name in self._tables.items()]

    def width(self, op: Op, port: str) -> int:
        """Columns of an op's input, or elements of a vector."""
        width = self.value(op, port).shape[-1]
        assert isinstance(width, int), "only rows have symbolic dims"
        return width

    def add_call(self, op: Op, kernel: CpuKernel, buffers: Mapping[str, str] | None = None) -> None:
        """Adds a call. A call that computes rows of logits runs only if the batch asks for some.

        Args:
            op: the op that it computes.
            kernel: the kernel to call. Its parameters are bound to the op's ports of the same names.
            buffers: buffers for the kernel's other parameters; they override those of the op.
        """
        makes_rows = "rows" in self.graph.value(next(iter(op.outputs.values()))).shape
        self.emit(op, kernel, buffers=buffers, when=ROWS_WANTED if makes_rows else None)

    def table(self, kernel: CpuKernel, shape: Shape) -> str:
        """The f32 buffer of a table that depends only on the batch. One call computes it for all ops of a phase.

        Args:
            kernel: computes the table. Its label names the buffer; the name of a second table ends in `_2`.
            shape: shape of the table.
        """
        if kernel not in self._tables:
            number = 1 + sum(table.label == kernel.label for table in self._tables)
            name = kernel.label if number == 1 else f"{kernel.label}_{number}"
            self._tables[kernel] = name
            self.scratch.append(Scratch(name, shape, DType.F32))
        return self._tables[kernel]


RULES: LoweringRules[CpuLowering] = LoweringRules("mlxr.compiler.targets.cpu.kernels")
"""The rules of this target."""
lowers = RULES.lowers
"""Registers the function that lowers ops of some kinds."""
