"""Decode steps, each of which is traced once for its shapes and the conditions of its launches.

The arena's token is an input and an output of the trace. If the plan asks for it, a step is a single kernel that
contains the others (see step_kernel.py).
"""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import ARENA_TOKEN, KernelCall, Phase
from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.packed import BoundInputs, DecodeInputs, Packed
from mlxr.runtime.hosts.cuda.parallel.peers import Peers
from mlxr.runtime.hosts.cuda.step_kernel import StepKernel
from mlxr.runtime.hosts.cuda.step_kernels import StepKernels
from mlxr.runtime.hosts.cuda.traces import RecentTraces, Trace, traced
from mlxr.runtime.hosts.mlx.bindable import of_shape
from mlxr.runtime.hosts.mlx.host import MlxHost

AS_LAUNCHES = "step_as_launches"
"""The name under which steps are counted that the plan wants as one kernel but that are single launches."""


class DecodeSteps:
    """The decode steps that a host has run."""

    def __init__(
        self, host: MlxHost, kernels: StepKernels, peers: Peers, prepare: Callable[[Phase, Dims], object]
    ) -> None:
        """Traces nothing yet.

        Args:
            host: launches, and counts launches.
            kernels: what runs whole steps.
            peers: through whose memory the cards of a stage sum.
            prepare: called before a step is traced.
        """
        self._host, self._kernels, self._peers, self._prepare = host, kernels, peers, prepare
        self._inputs = DecodeInputs()
        self._recent: RecentTraces[Trace] = RecentTraces()
        self._grid_dims = sorted(
            {
                extent.dim
                for launch in host.program.phase("decode").launches
                if isinstance(launch.body, KernelCall)
                for extent in launch.body.threadgroups
                if extent.dim
            }
        )

    def bind(
        self,
        phase: Phase,
        dims: Dims,
        arrays: Mapping[str, npt.NDArray[Any]],
        slots: Mapping[str, npt.NDArray[Any]],
        steps: int,
        tops: int,
    ) -> Callable[[mx.array], tuple[mx.array, mx.array]]:
        """Prepares steps, each of which has one more token of each sequence.

        Args:
            phase: the program's phase that runs them.
            dims: of the first step.
            arrays: what the first step reads of the batch, without token ids.
            slots: those of them that are slots, in each step: [steps, seqs].
            steps: how many.
            tops: how many of the greatest logits are exchanged; 0: all.

        Returns:
            What launches the first step, then the next, and so on, each time given token ids on the GPU. It returns
            logits [rows, vocab] f32 and the arena's new token, both lazy.
        """
        later = np.arange(steps, dtype=np.int32)[:, None]
        moving = {
            name: slots[name] if name in slots else array + later
            for name, array in arrays.items()
            if name in slots or name in DecodeInputs.MOVING
        }
        steady = {name: array for name, array in arrays.items() if name not in moving}
        inputs = self._inputs.bind(moving, steady, steps)
        traces = enumerate(self._traces_of(phase, dims, steps, inputs, tops))
        as_one = self._kernel(dims) is not None
        return lambda tokens: self._run(inputs, *next(traces), tokens, as_one=as_one)

    def _traces_of(self, phase: Phase, dims: Dims, steps: int, inputs: BoundInputs, tops: int) -> list[Trace]:
        """The trace of each step. Conditions are bounds: those that hold in the first and the last step always do."""
        last = self._trace_of(phase, {**dims, "context": dims["context"] + steps - 1}, inputs, tops)
        if self._trace_of(phase, dims, inputs, tops) is last:
            return [last] * steps
        return [self._trace_of(phase, {**dims, "context": dims["context"] + i}, inputs, tops) for i in range(steps)]

    def _trace_of(self, phase: Phase, dims: Dims, inputs: BoundInputs, tops: int) -> Trace:
        key = (
            phase.name,
            inputs.num_steady,
            *(dims["tokens"], dims["seqs"], dims["rows"], tops),
            *(dims[dim] for dim in self._grid_dims),
            *self._host.launcher.choice(phase, dims),
        )
        trace = self._recent.get(key) or self._trace(phase, dims, inputs.moving, tops)
        self._recent.keep(key, trace)
        return trace

    def _run(
        self, inputs: BoundInputs, step: int, trace: Trace, tokens: mx.array, *, as_one: bool
    ) -> tuple[mx.array, mx.array]:
        """Launches one of the steps that were bound."""
        moved, before = self._inputs.moved(inputs, step), self._host.arena.token
        if as_one:
            with StepKernel.order:
                turn = StepKernel.take_turn()
                logits, token, moved, after = trace.run(tokens, moved, inputs.stayed, before, turn)
                StepKernel.give_turn(after)
        else:
            logits, token, moved = trace.run(tokens, moved, inputs.stayed, before)
        self._inputs.advance(inputs, step, moved)
        launches = self._host.launches
        for name, count in trace.launches.items():
            launches[name] += count
        return logits, token

    def forget(self) -> None:
        """Forgets what the last step left on the GPU, which may have failed."""
        self._inputs.forget()
        with StepKernel.order:
            StepKernel.turn = None

    def _kernel(self, dims: Dims) -> StepKernel | None:
        """What runs a step whole; that of a part of a model needs the other cards' memory."""
        if self._host.plan.is_part and self._peers.exchange is None:
            return None
        return self._kernels.of(dims)

    def _trace(self, phase: Phase, dims: Dims, moving: Packed, tops: int) -> Trace:
        """The step as a function of tokens, what moves, what does not, the arena's token and a step kernel's turn."""
        self._prepare(phase, dims)
        host = self._host

        def run(
            tokens: mx.array, moved: mx.array, stayed: dict[str, mx.array], token: mx.array, *turn: mx.array
        ) -> tuple[mx.array, ...]:
            inputs = {"token_ids": tokens, ARENA_TOKEN: token} | moving.unpack(moved) | stayed
            if (kernel := self._kernel(dims)) is not None:
                host.launches.update(kernel.counts(dims))
                logits, token, *turns = kernel.run(host.fixed | inputs, self._kernels.layers, dims, *turn)
                if self._peers.exchange is not None:
                    own = of_shape(logits, (dims["rows"], kernel.width))
                    logits = host.launcher.gather_result(own, dims, tops)
                return logits, token, moved + 1, *turns
            logits, token = host.run(phase, dims, inputs, tops)
            if self._kernels.lacks(dims):
                host.launches[AS_LAUNCHES] += 1
            return logits, token, moved + 1

        return traced(host, run)
