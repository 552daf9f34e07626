"""Runs launches of a program through MLX: its kernels, and functions of MLX in place of some of them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import mlx.core as mx

from mlxr.compiler.artifact import (
    AttentionCall,
    CollectiveCall,
    Condition,
    HandoverCall,
    KernelCall,
    Launch,
    MatmulCall,
    Phase,
    PhaseName,
    Program,
)
from mlxr.compiler.errors import HostError
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.binding import Dims, shape_of
from mlxr.runtime.hosts.exchange import LazyExchange
from mlxr.runtime.hosts.handover import LazyHandover
from mlxr.runtime.hosts.mlx.bindable import MIN_ELEMENTS, bindable, bindable_shape, of_shape
from mlxr.runtime.hosts.mlx.library import Activated, call_library

Arrays = dict[str, mx.array]
"""Arrays by the names of the plan's buffers."""

MlxKernel = Callable[..., list[mx.array]]
"""A kernel as MLX launches it; called with inputs, grid, threadgroup, output_shapes and output_dtypes."""

_TOKEN_SHAPE = (MIN_ELEMENTS,)
_GIVEN = "a part of a model is given an exchange before its first step"


class _Kernel(NamedTuple):
    """What a launch of a kernel needs beside its buffers and its grid."""

    launch: MlxKernel
    threads: int
    dtypes: list[mx.Dtype]


class Launcher:
    """Runs launches of one program, as hosts and the tuner do.

    Attributes:
        exchange: what launches exchange rows with, where the program is that of a part of a model.
        handover: what launches give the CPU rows with, where the program leaves experts to it.
        activated: the host's own kernel for activations after MLX's matmul.
    """

    def __init__(
        self,
        program: Program,
        kernels: Mapping[str, MlxKernel],
        count: Callable[[str, object], None] = lambda name, detail: None,
    ) -> None:
        """Prepares.

        Args:
            program: whose launches.
            kernels: ready to launch, by name; at least those that will be launched.
            count: called at each launch with the name of the kernel or the label of the library call, and a detail.
        """
        self.exchange: LazyExchange | None = None
        self.handover: LazyHandover | None = None
        self.activated: Activated | None = None
        self._count = count
        self._kernels = {
            entry.name: _Kernel(
                kernels[entry.name], entry.threads, [MLX_DTYPES[str(port.dtype)] for port in entry.outputs]
            )
            for entry in program.kernels
            if entry.name in kernels
        }
        self._shapes = {phase.name: {b.name: b.shape for b in phase.buffers} for phase in program.phases}
        self._conditions = {phase.name: _conditions(phase) for phase in program.phases}
        self._running: dict[tuple[PhaseName | bool, ...], tuple[Launch, ...]] = {}

    def kernel(self, name: str) -> MlxKernel:
        """A kernel of the program."""
        return self._kernels[name].launch

    def choice(self, phase: Phase, dims: Dims) -> tuple[bool, ...]:
        """What decides which launches of a phase run for a batch: the outcome of each condition, and rows of logits."""
        return (dims["rows"] > 0, *[condition.holds(dims) for condition in self._conditions[phase.name]])

    def running(self, phase: Phase, dims: Dims) -> tuple[Launch, ...]:
        """The launches of a phase that run for a batch, in order."""
        key = (phase.name, *self.choice(phase, dims))
        if key not in self._running:
            self._running[key] = tuple(launch for launch in phase.launches if launch.runs(dims, library=True))
        return self._running[key]

    def run(self, phase: PhaseName | None, launch: Launch, arrays: Arrays, dims: Dims, tops: int = 0) -> None:
        """Runs a launch that runs for a batch, lazily.

        Args:
            phase: whose launch it is; None: it copies blocks.
            launch: of the program.
            arrays: what it reads; what it makes is added.
            dims: the dims of the batch.
            tops: how many of the greatest logits are exchanged; 0: all. See `Batch.tops`.

        Raises:
            HostError: MLX cannot launch the kernel.
        """
        shapes = self._shapes[phase] if phase is not None else {}
        if isinstance(launch.body, KernelCall):
            self._launch(launch.body, launch, arrays, dims, shapes)
        elif isinstance(launch.body, HandoverCall):
            assert phase is not None, "steps hand over"
            self._hand_over(launch.body, phase, launch, arrays, dims)
        else:
            self._call(launch.body, launch, arrays, dims, tops)

    def gather_result(self, own: mx.array | None, dims: Dims, tops: int) -> mx.array:
        """See `LazyExchange.gather_result_lazily`.

        Args:
            own: columns of this process; None: it has none.
            dims: the dims of the batch.
            tops: as for `run`.
        """
        assert self.exchange is not None, _GIVEN
        return self.exchange.gather_result_lazily(own, dims["rows"], tops)

    def _launch(
        self,
        call: KernelCall,
        launch: Launch,
        arrays: Arrays,
        dims: Dims,
        shapes: Mapping[str, tuple[int | str, ...]],
    ) -> None:
        kernel, grid = self._kernels[call.kernel], call.grid(dims)
        options: dict[str, Any] = {
            "grid": (grid[0] * kernel.threads, grid[1], grid[2]),
            "threadgroup": (kernel.threads, 1, 1),
            "output_shapes": [
                bindable_shape(shape_of(shapes[name], dims)) if name in shapes else _TOKEN_SHAPE
                for name in launch.outputs
            ],
            "output_dtypes": kernel.dtypes,
        }
        try:
            outputs = kernel.launch(inputs=[arrays[name] for name in launch.inputs], **options)
        except (RuntimeError, ValueError) as error:
            raise HostError(f"kernel {call.kernel} cannot be launched: {error}") from error
        arrays.update(zip(launch.outputs, outputs, strict=True))
        self._count(call.kernel, grid)

    def _exchange(self, call: CollectiveCall, launch: Launch, arrays: Arrays, dims: Dims, tops: int) -> None:
        """Runs one. A send is tied to the result, or else to the arena's token: see `MlxHost`."""
        exchange = self.exchange
        assert exchange is not None, _GIVEN
        bound = {
            port.name: of_shape(arrays[name], shape_of(port.shape, dims))
            for port, name in zip(call.ports, launch.inputs, strict=True)
        }
        dtype = MLX_DTYPES[str(call.dtype)]
        if call.function == "all_sum":
            out = exchange.all_sum_lazily(bound["x"])
        elif call.function == "send":
            out = exchange.send_lazily(bound["x"])
        elif call.function == "receive":
            out = exchange.receive_lazily((dims["tokens"], call.width), dtype)
        else:
            out = self.gather_result(bound.get("x"), dims, tops)
        arrays[launch.outputs[0]] = bindable(out)
        self._count(call.label, launch.op)

    def _hand_over(self, call: HandoverCall, phase: PhaseName, launch: Launch, arrays: Arrays, dims: Dims) -> None:
        """Gives the CPU rows, or takes its sum."""
        handover = self.handover
        assert handover is not None, "a card that leaves experts to the CPU is given them before its first step"
        bound = {port.name: arrays[name] for port, name in zip(call.ports, launch.inputs, strict=True)}
        if call.function == "give":
            arrays[launch.outputs[0]] = handover.give(call, phase, bound, dims["tokens"])
        else:
            arrays[launch.outputs[0]] = handover.take(call, bound, dims["tokens"])
        self._count(call.label, launch.op)

    def _call(
        self, call: MatmulCall | AttentionCall | CollectiveCall, launch: Launch, arrays: Arrays, dims: Dims, tops: int
    ) -> None:
        if isinstance(call, CollectiveCall):
            self._exchange(call, launch, arrays, dims, tops)
            return
        inputs = {
            port.name: of_shape(arrays[name], shape_of(port.shape, dims))
            for port, name in zip(call.ports, launch.inputs, strict=True)
        }
        arrays[launch.outputs[0]] = bindable(call_library(call, inputs, self.activated))
        self._count(call.label, launch.op)


def _conditions(phase: Phase) -> list[Condition]:
    """Each condition of a phase's launches, once."""
    conditions = (condition for launch in phase.launches for condition in (launch.when, launch.yields))
    return list(dict.fromkeys(condition for condition in conditions if condition is not None))
