"""Decode steps, each of which is traced once for its shapes and the conditions of its launches.

The arena's token is an input and an output of the trace. If the plan asks for it, a step is a single kernel that
contains the others (see step_kernel.py).
"""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import numpy.typing as npt

from mlxr.compiler.artifact import ARENA_TOKEN, KernelCall, Phase
from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.packed import DecodeInputs, Packed
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

    def run(
        self, phase: Phase, dims: Dims, arrays: dict[str, npt.NDArray[Any]], others: Mapping[str, mx.array], tops: int
    ) -> tuple[mx.array, mx.array]:
        """Launches a step.

        Args:
            phase: the program's phase that runs it.
            dims: of the batch.
            arrays: what the step reads of the batch.
            others: the same that is on the GPU already.
            tops: how many of the greatest logits are exchanged; 0: all.

        Returns:
            Logits [rows, vocab] f32 and the arena's new token, both lazy.
        """
        tokens = others.get("token_ids")
        tokens = mx.array(arrays.pop("token_ids")) if tokens is None else tokens
        (moving, moved), (steady, stayed) = self._inputs.bind(arrays)
        key = (
            phase.name,
            len(steady.numbers),
            *(dims["tokens"], dims["seqs"], dims["rows"], tops),
            *(dims[dim] for dim in self._grid_dims),
            *self._host.launcher.choice(phase, dims),
        )
        trace = self._recent.get(key) or self._trace(phase, dims, moving, steady, tops)
        self._recent.keep(key, trace)
        before = self._host.arena.token
        if self._kernel(dims) is not None:
            with StepKernel.order:
                turn = StepKernel.take_turn()
                logits, token, moved, StepKernel.turn = trace.run(tokens, moved, stayed, before, turn)
        else:
            logits, token, moved = trace.run(tokens, moved, stayed, before)
        self._inputs.advance(moved)
        self._host.launches.update(trace.launches)
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

    def _trace(self, phase: Phase, dims: Dims, moving: Packed, steady: Packed, tops: int) -> Trace:
        """The step as a function of tokens, the packed arrays, the arena's token and a step kernel's turn."""
        self._prepare(phase, dims)
        host = self._host

        def run(
            tokens: mx.array, moved: mx.array, stayed: mx.array, token: mx.array, *turn: mx.array
        ) -> tuple[mx.array, ...]:
            inputs = {"token_ids": tokens, ARENA_TOKEN: token} | moving.unpack(moved) | steady.unpack(stayed)
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
