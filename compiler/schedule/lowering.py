"""The base of every target's lowering, from the ops of a phase to launches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.launch import ONE, Condition, Extent
from mlxr.compiler.artifact.library_call import LibraryCall, WeightCast
from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry, CacheGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.tensor import Shape, Tensor
from mlxr.compiler.schedule.kernel import Kernel
from mlxr.compiler.schedule.pending_launch import PendingLaunch

Rule = Callable[[Op], None]
"""Lowers an op: adds its launches, and the buffers between them."""


@dataclass(frozen=True)
class Scratch:
    """A buffer between two launches that is not a value of the graph: name, shape and element type."""

    name: str
    shape: Shape
    dtype: DType


class Lowering(ABC):
    """Lowers the graph of one phase, collecting launches and the buffers between them.

    Attributes:
        graph, phase: the graph, and the phase that it belongs to.
        arena: the geometry of all stores.
        pending: the launches so far, in order.
        scratch: the buffers so far.
        casts: the weights in other types, for library calls, so far, by name.
    """

    def __init__(self, graph: OpGraph, phase: PhaseName, arena: ArenaGeometry) -> None:
        self.graph = graph
        self.phase = phase
        self.arena = arena
        self.pending: list[PendingLaunch] = []
        self.scratch: list[Scratch] = []
        self.casts: dict[str, WeightCast] = {}

    @property
    @abstractmethod
    def rules(self) -> Mapping[type[OpKind], Rule]:
        """The rule of each kind of op."""

    def lower_ops(self) -> None:
        """Lowers every op.

        Raises:
            PlanError: an op has no rule; a pass that should have fused it did not fire.
        """
        rules = self.rules
        for op in self.graph.ops:
            rule = rules.get(type(op.attrs))
            if rule is None:
                raise PlanError(f"op {op.name!r} ({op.kind}) has no kernel in phase {self.phase}; was it not fused?")
            rule(op)

    def emit(
        self,
        op: Op,
        kernel: Kernel,
        grid: tuple[Extent, ...] = (),
        buffers: Mapping[str, str] | None = None,
        *,
        when: Condition | None = None,
        yields: Condition | None = None,
        needs_library: bool = False,
        chosen: ChosenGeometry | None = None,
    ) -> None:
        """Adds a launch.

        Args:
            op: the op that it computes. The kernel's ports are bound to the op's ports of the same names.
            kernel: the kernel to launch.
            grid: threadgroups along up to three axes.
            buffers: buffers for the kernel's other ports; they override those of the op.
            when: the launch runs only if this holds.
            yields: see `Launch`.
            needs_library: see `Launch`.
            chosen: the kernel's geometry.
        """
        inputs, outputs = {**op.inputs, **(buffers or {})}, {**op.outputs, **(buffers or {})}
        x, y, z, *_ = (*grid, ONE, ONE, ONE)
        self.pending.append(
            PendingLaunch(
                op.name,
                kernel,
                tuple(inputs[port] for port, _ in kernel.inputs),
                tuple(outputs[port] for port, _ in kernel.outputs),
                (x, y, z),
                when=when,
                layer=op.layer,
                place=self.place_of(op),
                yields=yields,
                needs_library=needs_library,
                chosen=chosen,
            )
        )

    def call_library(self, op: Op, call: LibraryCall, buffers: Mapping[str, str], *, when: Condition) -> None:
        """Adds a launch that calls a function of MLX, on hosts that have it.

        Args:
            op: the op that it computes; the call's only result is the op's `out`.
            call: the function and its options.
            buffers: buffers for ports that the op lacks; they override those of the op.
            when: the launch runs only if this holds.
        """
        inputs = {**op.inputs, **buffers}
        self.pending.append(
            PendingLaunch(
                op.name,
                call,
                tuple(inputs[port.name] for port in call.ports),
                (op.out,),
                when=when,
                layer=op.layer,
                needs_library=True,
            )
        )

    def cast(self, weight: str, dtype: DType) -> str:
        """Declares a weight in another type and returns its name."""
        name = f"{weight}.{dtype}"
        self.casts[name] = WeightCast(name=name, weight=weight, dtype=dtype)
        return name

    def value(self, op: Op, port: str) -> Value:
        """The value that an op's input port is bound to."""
        return self.graph.value(op.inputs[port])

    def tensor(self, name: str) -> Tensor:
        """Shape and type of a value of the graph, or of a buffer between two launches."""
        scratch = next((buffer for buffer in self.scratch if buffer.name == name), None)
        return Tensor(scratch.shape, scratch.dtype) if scratch else self.graph.value(name).tensor

    def place_of(self, op: Op) -> int | None:
        """The number by which kernels know the op's layer: its place in the stores that it accesses; None: in none."""
        if op.layer is None or not op.attrs.accesses:
            return None
        places = {self.arena.place(self.arena.store(port), op.layer)[1] for port in op.attrs.accesses}
        assert len(places) == 1, f"{op.name}: its layer has several places in {', '.join(op.attrs.accesses)}"
        return places.pop()

    def layers_of(self, op: Op, store: str) -> int:
        """How many layers have rows of a store of sequences, [slots, layers, ...], that an op accesses."""
        layers = self.value(op, store).shape[1]
        assert isinstance(layers, int), "a store has a fixed size"
        return layers

    def cache_of(self, op: Op) -> CacheGeometry:
        """The keys and values that an op accesses."""
        assert op.layer is not None, "the verifier demands a layer of every op that accesses a store"
        return self.arena.cache_of(op.layer)

    def optional_dtype(self, op: Op, port: str) -> DType | None:
        """The element type of an optional input; None if it is not bound."""
        return self.value(op, port).dtype if port in op.inputs else None
