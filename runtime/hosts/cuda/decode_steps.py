"""Decode steps, each of which is traced once for its shapes and the conditions of its launches.

The arena's token is an input and an output of the trace. If the plan asks for it, a step is a single kernel that
contains the others (see step_kernel.py). Other steps whose launches are all kernels are recorded (recorded_step.py).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import ARENA_TOKEN, KernelCall, Phase
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.drawing import can_draw
from mlxr.runtime.hosts.cuda.mlx_stream import why_unknown
from mlxr.runtime.hosts.cuda.packed import TABLES, BoundInputs, DecodeInputs, Packed
from mlxr.runtime.hosts.cuda.parallel.peers import Peers
from mlxr.runtime.hosts.cuda.recorded_memory import MOST_STEPS, context_borders
from mlxr.runtime.hosts.cuda.recorded_prompts import LaunchesOf, RecordedPrompts
from mlxr.runtime.hosts.cuda.recorded_step import ChosenOfSteps, RecordedStep, RecordedSteps
from mlxr.runtime.hosts.cuda.step_kernel import StepKernel
from mlxr.runtime.hosts.cuda.step_kernels import StepKernels
from mlxr.runtime.hosts.cuda.traces import Key, RecentTraces, Trace, traced
from mlxr.runtime.hosts.likeliest import Asked, LikeliestOfSteps, MoreSteps
from mlxr.runtime.hosts.mlx.bindable import of_shape
from mlxr.runtime.hosts.mlx.host import MlxHost

AS_LAUNCHES = "step_as_launches"
"""The name under which steps are counted that the plan wants as one kernel but that are single launches."""


class _Chosen(NamedTuple):
    """The last steps that chose their tokens.

    Attributes:
        phase: the program's phase that runs them.
        dims: of one of them, but for the context.
        inputs: what they read.
        kernel: what runs them; None: launches.
        room: the longest context that has room in their block tables.
        step: the last of them.
        until: the context from which on another step must be found.
    """

    phase: Phase
    dims: Dims
    inputs: BoundInputs
    kernel: StepKernel | None
    room: int
    step: RecordedStep
    until: int


class DecodeSteps:
    """The decode steps that a host has run.

    Attributes:
        num_recorded: how many of them were recorded steps.
    """

    def __init__(
        self, host: MlxHost, kernels: StepKernels, peers: Peers, launches_of: LaunchesOf, prompts: RecordedPrompts
    ) -> None:
        """Traces nothing yet.

        Args:
            host: launches, and counts launches.
            kernels: what runs whole steps.
            peers: through whose memory the cards of a stage sum.
            launches_of: those that a step needs; called before it is recorded or traced.
            prompts: whose memory products of recorded steps work in.
        """
        self._host, self._kernels, self._peers, self._launches_of = host, kernels, peers, launches_of
        self._inputs, self._recorded = DecodeInputs(), RecordedSteps(host, kernels.layers, launches_of, prompts)
        self._recent: RecentTraces[Trace | RecordedStep] = RecentTraces()
        self._taken: dict[tuple[int, ...], bool] = {}
        self._refused: dict[int, str] = {}
        self._chosen: _Chosen | None = None
        self._begun: tuple[_Chosen, ChosenOfSteps] | None = None  # the same of which not all have been started
        self._turn: mx.array | None = None  # that this host has made last
        self.num_recorded = 0
        self._borders = context_borders(host.program.phase("decode"))
        self._grid_dims = sorted(
            {
                extent.dim
                for launch in host.program.phase("decode").launches
                if isinstance(launch.body, KernelCall)
                for extent in launch.body.threadgroups
                if extent.dim
            }
        )

    @property
    def notes(self) -> list[str]:
        """Messages for people: which steps are not recorded, and why."""
        notes = [
            f"decode steps of {rows} sequence(s) cannot be recorded, and are slower: {why}"
            for rows, why in self._refused.items()
        ]
        why = why_unknown() if self._recorded.takes_some else None
        return notes if why is None else [f"decode steps are launched by MLX and not recorded, slower: {why}", *notes]

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
        inputs = self._bound(arrays, slots, steps)
        traces = enumerate(self._traces_of(phase, dims, steps, inputs, tops))
        as_one = self._kernel(dims) is not None
        return lambda tokens: self._run(inputs, *next(traces), tokens, as_one=as_one)

    def choose(
        self,
        phase: Phase,
        dims: Dims,
        arrays: Mapping[str, npt.NDArray[Any]],
        slots: Mapping[str, npt.NDArray[Any]],
        steps: int,
        tokens: mx.array,
        asked: Asked | None = None,
    ) -> LikeliestOfSteps | None:
        """Runs steps that take the tokens that the one before has chosen, as `bind` prepares them.

        Args:
            phase: see `bind`, as for the others.
            dims: of the first step.
            arrays: what it reads.
            slots: of each step.
            steps: how many.
            tokens: ids of the first.
            asked: how they choose, see `Host.likeliest_of_steps`.

        Returns:
            See `Host.likeliest_of_steps`.
        """
        kernel, last = self._kernel(dims), {**dims, "context": dims["context"] + steps - 1}
        if steps > MOST_STEPS or not self._takes(phase, dims, kernel) or not self._takes(phase, last, kernel):
            return None
        if asked is not None and not can_draw(dims["rows"], self._host.plan.output_width):
            return None
        inputs = self._bound(arrays, slots, steps, together=True)
        recorded = self._recorded_of(phase, dims, last, steps, inputs, kernel, asked is not None)
        if recorded is None:
            return None
        with StepKernel.order if kernel is not None else nullcontext():
            room = self._room(arrays)
            chosen = _Chosen(phase, dims, inputs, kernel, room, recorded[-1], self._until(last, room))
            return self._choose(chosen, recorded, tokens, asked)

    def go_on(self, after: LikeliestOfSteps, more: MoreSteps) -> LikeliestOfSteps | None:
        """See `Host.go_on`."""
        chosen, before, count = self._chosen, self._recorded.last, more.steps
        if chosen is None or before is not after or not self._inputs.is_predicted or count > MOST_STEPS:
            return None
        if more.first and chosen.kernel is not None and len(StepKernel.models) > 1:
            return None  # others take their turns in between
        kernel, context = chosen.kernel, max(more.starts) + 1
        if context + count > chosen.until:
            dims: Dims = {**chosen.dims, "context": context}
            last: Dims = {**dims, "context": context + count - 1}
            if last["context"] > chosen.room or not self._takes(chosen.phase, last, kernel):
                return None
            recorded = self._recorded_of(chosen.phase, dims, last, count, chosen.inputs, kernel, more.asked is not None)
            if recorded is None or any(step.batch is not before.batch for step in recorded):
                return None
            chosen = chosen._replace(step=recorded[-1], until=self._until(last, chosen.room))
        else:
            recorded = [chosen.step] * count
        with StepKernel.order if kernel is not None else nullcontext():
            if not self._recorded.may_go_on(kernel):
                return None
            self._chosen = None  # until they have been started: Ctrl-C may come when sequences have grown
            if (grown := more.grow()) is None:
                return None
            inputs = self._inputs.go_on(chosen.inputs, count, grown)
            return self._choose(chosen._replace(inputs=inputs), recorded, None, more.asked, more.first)

    def run_on(self, steps: LikeliestOfSteps, count: int, until: int, called: Callable[[], bool] | None) -> int | None:
        """See `Host.run_on`."""
        assert isinstance(steps, ChosenOfSteps), "they are recorded"
        begun, self._begun = self._begun, None  # until it is known what has been started
        if steps.left and (begun is None or begun[1] is not steps):
            return None
        before = steps.given
        ended = self._recorded.run_on(steps, count, until, called, None if begun is None else begun[0].kernel)
        if begun is not None and steps.given > before:
            self._have_started(begun[0], steps, before)
        elif ended is not None:
            self._begun = begun
        return ended

    def _choose(
        self,
        chosen: "_Chosen",
        recorded: list[RecordedStep],
        tokens: mx.array | None,
        asked: Asked | None,
        first: int = 0,
    ) -> LikeliestOfSteps:
        """Runs recorded steps. The lock of a kernel's turns is held; for the others see `RecordedSteps.choose`."""
        inputs, kernel = chosen.inputs, chosen.kernel
        self._chosen = self._begun = None  # until they have been started
        moving = partial(self._inputs.moved, inputs, 0)
        steps = self._recorded.choose(recorded, tokens, moving, inputs, kernel, asked, first)
        if kernel is not None:
            self._kernels.follow(steps.end.wait)
            self._turn = steps.turn
        self._have_started(chosen, steps, 0)
        return steps

    def _have_started(self, chosen: "_Chosen", steps: ChosenOfSteps, before: int) -> None:
        """Some of prepared steps have been started, after so many others; once all have, others may go on."""
        if steps.left:
            self._begun = chosen, steps
        else:
            self._inputs.advance(chosen.inputs, steps.given - 1, lambda: steps.moving)
            self._chosen = chosen
        started, launches = steps.recorded[before : steps.given], self._host.launches
        self.num_recorded += len(started)
        all_same = started[0] is started[-1]
        for step, times in [(started[0], len(started))] if all_same else Counter(started).items():
            for name, count in step.launches.items():
                launches[name] += count * times

    def _room(self, arrays: Mapping[str, npt.NDArray[Any]]) -> int:
        """The longest context for which block tables have columns."""
        arena = self._host.plan.arena
        return int(arrays[TABLES][0]) * arena.block_size if TABLES in arrays else arena.context

    def _until(self, dims: Dims, room: int) -> int:
        """The context from which on a step must be found again, which one with these dims is not."""
        return min([room + 1, *(border for border in self._borders if border > dims["context"])])

    def _takes(self, phase: Phase, dims: Dims, kernel: StepKernel | None) -> bool:
        """`RecordedSteps.takes`, known for dims between the same borders, where grids are the same for all contexts."""
        key = (kernel is None, dims["tokens"], dims["seqs"], dims["rows"], self._between(dims))
        if dims["rows"] in self._refused:
            return False
        if key not in self._taken:
            has_one_grid = kernel is not None or "context" not in self._grid_dims
            self._taken[key] = has_one_grid and self._recorded.takes(phase, dims, kernel)
        return self._taken[key] and self._recorded.is_reached

    def _between(self, dims: Dims) -> int:
        """Between which contexts conditions do not change, as a number."""
        return bisect_right(self._borders, dims["context"])

    def _recorded_of(
        self,
        phase: Phase,
        dims: Dims,
        last: Dims,
        steps: int,
        inputs: BoundInputs,
        kernel: StepKernel | None,
        draws: bool,
    ) -> list[RecordedStep] | None:
        """The recorded step of each of some steps, of which the first and the last have these dims; None: one fails."""
        if self._between(dims) == self._between(last):
            one = self._recorded_step(phase, dims, inputs, kernel, draws)
            return None if one is None else [one] * steps
        found = list[RecordedStep]()
        for i in range(steps):
            step = self._recorded_step(phase, {**dims, "context": dims["context"] + i}, inputs, kernel, draws)
            if step is None:
                return None
            found.append(step)
        return found

    def _recorded_step(
        self, phase: Phase, dims: Dims, inputs: BoundInputs, kernel: StepKernel | None, draws: bool
    ) -> RecordedStep | None:
        grids = [dims[dim] for dim in self._grid_dims]
        key: Key = ("recorded", draws, kernel is None, inputs.num_steady, dims["rows"], self._between(dims), *grids)
        step = self._recent.get(key)
        if step is None:
            step = self._record(phase, dims, inputs, chooses=True, draws=draws)
        if step is not None:
            self._recent.keep(key, step)
        assert step is None or isinstance(step, RecordedStep), "no others have such keys"
        return step

    def _bound(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        slots: Mapping[str, npt.NDArray[Any]],
        steps: int,
        together: bool = False,
    ) -> BoundInputs:
        later = np.arange(steps, dtype=np.int32)[:, None]
        moving = {
            name: slots[name] if name in slots else array + later
            for name, array in arrays.items()
            if name in slots or name in DecodeInputs.MOVING
        }
        steady = {name: array for name, array in arrays.items() if name not in moving}
        return self._inputs.bind(moving, steady, steps, together)

    def _traces_of(
        self, phase: Phase, dims: Dims, steps: int, inputs: BoundInputs, tops: int
    ) -> list[Trace | RecordedStep]:
        """The trace of each step. Conditions are bounds: those that hold in the first and the last step always do."""
        last = self._trace_of(phase, {**dims, "context": dims["context"] + steps - 1}, inputs, tops)
        if self._trace_of(phase, dims, inputs, tops) is last:
            return [last] * steps
        return [self._trace_of(phase, {**dims, "context": dims["context"] + i}, inputs, tops) for i in range(steps)]

    def _trace_of(self, phase: Phase, dims: Dims, inputs: BoundInputs, tops: int) -> Trace | RecordedStep:
        key = self._key(phase, dims, inputs, tops)
        trace = self._recent.get(key)
        if trace is None:
            may_record = self._recorded.is_reached and dims["rows"] not in self._refused
            if may_record and self._kernel(dims) is None and self._recorded.takes(phase, dims):
                trace = self._record(phase, dims, inputs, chooses=False)
            if trace is None:
                trace = self._trace(phase, dims, inputs.moving, tops)
        self._recent.keep(key, trace)
        return trace

    def _key(self, phase: Phase, dims: Dims, inputs: BoundInputs, tops: int) -> Key:
        return (
            phase.name,
            self._recorded.is_reached,
            inputs.num_steady,
            *(dims["tokens"], dims["seqs"], dims["rows"], tops),
            *(dims[dim] for dim in self._grid_dims),
            *self._host.launcher.choice(phase, dims),
        )

    def _record(
        self, phase: Phase, dims: Dims, inputs: BoundInputs, *, chooses: bool, draws: bool = False
    ) -> RecordedStep | None:
        """A step that is recorded; None: there is no memory, so no more of this size are."""
        try:
            step = self._recorded.record(phase, dims, inputs, self._kernel(dims), draws=draws)
            step.build(chooses=chooses)
        except (HostError, RuntimeError, ValueError) as error:
            self._refused[dims["rows"]] = str(error)
            self._host.notes += (self.notes[-1],)
            return None
        if self._kernels.lacks(dims):
            step.launches[AS_LAUNCHES] += 1
        return step

    def _run(
        self, inputs: BoundInputs, step: int, trace: Trace | RecordedStep, tokens: mx.array, *, as_one: bool
    ) -> tuple[mx.array, mx.array]:
        """Launches one of the steps that were bound."""
        moved, before = self._inputs.moved(inputs, step), self._host.arena.token
        if isinstance(trace, RecordedStep):
            logits, token, moved = trace.logits_of(tokens, moved, inputs, before)
            self.num_recorded += 1
        elif as_one:
            with StepKernel.order:
                turn = StepKernel.take_turn()
                logits, token, moved, after = trace.run(tokens, moved, inputs.steady.arrays, before, turn)
                StepKernel.give_turn(after)
                self._kernels.follow(partial(mx.eval, after))
                self._turn = after
        else:
            logits, token, moved = trace.run(tokens, moved, inputs.steady.arrays, before)
        self._inputs.advance(inputs, step, moved)
        launches = self._host.launches
        for name, count in trace.launches.items():
            launches[name] += count
        return logits, token

    def forget(self) -> None:
        """Forgets what the last step left on the GPU, which may have failed.

        The turn of another model stays: its step kernels may still run.
        """
        self._chosen = self._begun = None
        self._inputs.forget()
        self._recorded.forget()
        self._kernels.follow(None)
        with StepKernel.order:
            if StepKernel.turn is self._turn or {*StepKernel.models} == {self._kernels}:
                StepKernel.turn = None
            self._turn = None

    def _kernel(self, dims: Dims) -> StepKernel | None:
        """What runs a step whole; that of a part of a model needs the other cards' memory."""
        if self._host.plan.is_part and self._peers.exchange is None:
            return None
        return self._kernels.of(dims)

    def _trace(self, phase: Phase, dims: Dims, moving: Packed, tops: int) -> Trace:
        """The step as a function of tokens, what moves, what does not, the arena's token and a step kernel's turn."""
        self._launches_of(phase, dims, None)
        host, one = self._host, on_device(mx.ones((len(moving.numbers),), mx.int32))
        # An array of ones: MLX would fuse a number with what it is added to, and compile that for 4 to 6 s.

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
                return logits, token, moved + one, *turns
            logits, token = host.run(phase, dims, inputs, tops)
            if self._kernels.lacks(dims):
                host.launches[AS_LAUNCHES] += 1
            return logits, token, moved + one

        return traced(host, run)
