"""Decode steps that are recorded once, as a CUDA graph, and then started by one call each.

The graph is given to MLX's own stream (mlx_stream.py), once MLX has been given what comes before it, and whoever needs
the step needs what is fetched after it (recorded_batch.py). A graph has all launches of a step, or its step kernel. If
the host is to choose tokens, it also does that, and the step after begins with them: MLX, which takes 5 to 20 us of CPU
for each launch, has two launches for several steps, and none for those that follow with the same sequences.

Recorded launches use the same memory in each step: the batch, activations and logits have places of their own. Weights
and the arena's stores are where they are (address_table.py). Matrix products work where those of recorded prompts do.
Not recorded are steps with other functions of MLX among their launches, with adapters (the CPU writes those), and of
parts of models.
"""

import functools
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import prod
from weakref import WeakValueDictionary

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Phase
from mlxr.runtime.arrays.mlx_arrays import start_computing
from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.address_table import address_table
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.drawing import draw_call
from mlxr.runtime.hosts.cuda.launch_graph import Event, LaunchGraph, overlap
from mlxr.runtime.hosts.cuda.mlx_stream import mlx_stream
from mlxr.runtime.hosts.cuda.packed import BoundInputs
from mlxr.runtime.hosts.cuda.recorded_batch import MOST_LAUNCHES, RecordedBatch, choose_call
from mlxr.runtime.hosts.cuda.recorded_calls import Call, ProductCall, arrays_of
from mlxr.runtime.hosts.cuda.recorded_memory import (
    Places,
    is_recorded,
    places_of_kernel,
    places_of_launches,
    result_bytes,
)
from mlxr.runtime.hosts.cuda.recorded_prompts import Launches, LaunchesOf, RecordedPrompts
from mlxr.runtime.hosts.cuda.recording import clearing_of, recording_of
from mlxr.runtime.hosts.cuda.step_kernel import StepKernel
from mlxr.runtime.hosts.likeliest import Asked
from mlxr.runtime.hosts.mlx.bindable import bindable_shape
from mlxr.runtime.hosts.mlx.host import MlxHost

_MOST_MARKS = 8
"""More than are waited for at any time."""


class RecordedSteps:
    """The recorded steps of a host.

    Mutable state: the memory of activations, once a step is recorded; batches, by their sizes, as long as a step has
    them. How much both may be, recorded_memory.py knows.

    Attributes:
        host: whose launches.
        layers: [layers, 8] u32, the constants of all layers.
        unread: the logits of the last step, which are copied before the next one is started.
        last: what the last steps choose, while nothing else has been given to the arena by this.
    """

    def __init__(self, host: MlxHost, layers: mx.array, launches_of: LaunchesOf, prompts: RecordedPrompts) -> None:
        """Records nothing yet.

        Args:
            host: whose launches.
            layers: see above.
            launches_of: those that a step needs; called before it is recorded.
            prompts: whose memory products work in.
        """
        self.host, self.layers, self.launches_of, self.prompts = host, layers, launches_of, prompts
        self.unread = list[mx.array]()
        self.last: ChosenOfSteps | None = None
        self._ends: deque[Event] = deque()  # of launches
        self._marks: deque[Event] = deque()  # after steps that were given together
        self._end: Event | None = None  # of the last steps whose tokens are chosen here; others may have to wait for it
        self._stream = 0
        host.arena.before_access = functools.partial(_wait_elsewhere, weakref.ref(self), host.arena.before_access)
        self._batches: WeakValueDictionary[tuple[int, ...], RecordedBatch] = WeakValueDictionary()

    @property
    def takes_some(self) -> bool:
        """Whether steps of the plan can be recorded at all."""
        return is_recorded(self.host.plan)

    @property
    def is_reached(self) -> bool:
        """Whether this thread's stream is known, on which recorded steps are started."""
        return mlx_stream() is not None

    def takes(self, phase: Phase, dims: Dims, kernel: StepKernel | None = None) -> bool:
        """Whether a step with these dims can be recorded, by launches or by a step kernel; the same in all threads."""
        launcher = self.host.launcher
        if launcher.exchange is not None or launcher.handover is not None or not self.takes_some:
            return False
        if not dims["tokens"] == dims["rows"] == dims["seqs"]:
            return False
        launches = launcher.running(phase, dims) if kernel is None else ()
        return Launches.of(phase, launches) is not None

    def record(
        self, phase: Phase, dims: Dims, inputs: BoundInputs, kernel: StepKernel | None, *, draws: bool = False
    ) -> "RecordedStep":
        """A step that it takes, by launches or by a step kernel; `draws`: if it chooses its tokens, as rows ask for.

        Raises:
            HostError: the driver refuses.
        """
        mx.eval(*self.unread)  # products that are new run, where the results of the last step are
        width = self.host.plan.output_width
        key = (dims["rows"], len(inputs.moving.numbers), len(inputs.steady.packed.numbers))
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = RecordedBatch(dims, inputs, width)
        return RecordedStep(self, batch, phase, dims, kernel, draws)

    def choose(
        self,
        recorded: Sequence["RecordedStep"],
        tokens: mx.array | None,
        moving: Callable[[], mx.array],
        inputs: BoundInputs,
        kernel: StepKernel | None,
        asked: Asked | None = None,
        first: int = 0,
    ) -> "ChosenOfSteps":
        """Runs steps, each of which takes the tokens that the one before has chosen.

        Args:
            recorded: each of them; they read one batch.
            tokens: ids of the first, [seqs] int32; None: they go on after the last ones, as `may_go_on` allows.
            moving: gives what moves of the first.
            inputs: what else they read.
            kernel: what runs them; the lock of its turns is held.
            asked: how rows draw their tokens, if the steps do; None: they take the likeliest.
            first: how many of them are started now, the others by `more`; 0: all.

        Raises:
            HostError: MLX or the driver refuses.
        """
        host, stream, batch = self.host, mlx_stream(), recorded[0].batch
        assert stream is not None, "it was there when the steps were recorded"
        token, turn = host.arena.token, None if kernel is None else StepKernel.take_turn()
        with host.failures():
            goes_on = tokens is None or self._goes_on(batch, tokens, token, turn, stream)
            running = self.last.marks[-1:] if goes_on and self.last is not None else []
            self.last = None  # until all have been started
            if not goes_on:
                assert tokens is not None, "steps that go on have been excluded"
                token, _ = batch.place(tokens, moving(), inputs, token, turn)
                start_computing([token, *self.unread])
                self.unread = []
            end = _next_of(self._ends, MOST_LAUNCHES)
            if goes_on:
                end.wait()  # see `RecordedBatch.renew`
            chosen = ChosenOfSteps(self, batch, recorded, token, end, asked)
            chosen.marks += running
            try:
                if goes_on:
                    batch.renew(inputs, stream, end)
                self._start(chosen, first or len(recorded), stream)
            finally:
                end.record(stream)
        if kernel is not None:
            if len(StepKernel.models) > 1:
                StepKernel.give_turn(chosen.fetched[2])
            chosen.turn = StepKernel.turn
        self.last, self._end, self._stream = chosen, end, stream
        host.arena.token = token
        return chosen

    def run_on(
        self,
        steps: "ChosenOfSteps",
        count: int,
        until: int,
        called: Callable[[], bool] | None,
        kernel: StepKernel | None,
    ) -> int | None:
        """See `Host.run_on`. After each wait, nothing is in the processor's cache: this is short.

        Args:
            steps: they.
            count: see there.
            until: likewise.
            called: likewise.
            kernel: what runs them; None: launches.
        """
        marks, all_steps = steps.marks, len(steps.recorded)
        with self.host.failures():
            while True:
                if steps.given < all_steps and len(marks) < 2:
                    with nullcontext() if kernel is None else StepKernel.order:
                        is_alone = kernel is None or len(StepKernel.models) == 1  # else it gives its turn each time
                        if self.last is not steps or not (is_alone and self.may_go_on(kernel)):
                            return None
                        self.last = None  # until they have been started
                        try:
                            if called is None and steps.given < (begin := min(until, all_steps - count)):
                                self._start(steps, begin - steps.given, self._stream)
                                del marks[:-1]  # there is no need to wait for these
                            self._start(steps, count, self._stream)
                        finally:
                            steps.end.record(self._stream)
                        self.last, self._end = steps, steps.end
                ended = steps.wait_next()
                if ended >= until or (called and called()) or (len(marks) < 2 and steps.given == all_steps):
                    return ended

    def _start(self, chosen: "ChosenOfSteps", count: int, stream: int) -> None:
        batch, done = chosen.batch, chosen.given
        if chosen.asked is not None:
            batch.ask(chosen.asked[done : done + count])
        for step in chosen.recorded[done : done + count]:
            batch.count += 1
            step.start(stream, chosen.end, chooses=True)
        chosen.given = min(done + count, len(chosen.recorded))
        mark = _next_of(self._marks, _MOST_MARKS)
        mark.record(stream)
        chosen.marks.append((batch.count, mark))

    def may_go_on(self, kernel: StepKernel | None) -> bool:
        """Whether steps may begin where the last ones have ended: the arena was given to nobody since.

        Args:
            kernel: what runs them; the lock of its turns is held.
        """
        last = self.last
        if last is None or mlx_stream() != self._stream or self.host.arena.token is not last.token:
            return False
        return kernel is None or StepKernel.turn is last.turn

    def _goes_on(
        self, batch: RecordedBatch, tokens: mx.array, token: mx.array, turn: mx.array | None, stream: int
    ) -> bool:
        """Whether steps begin where the last ones ended, and the arena has been given to nobody in between."""
        last = self.last
        if last is None or last.batch is not batch or stream != self._stream:
            return False
        return tokens is last.tokens and token is last.token and turn is last.turn

    @functools.cached_property
    def plain_end(self) -> Event:
        """After the last step whose tokens others choose."""
        return Event()

    def forget(self) -> None:
        """Forgets the last steps, which may have failed."""
        self.last, self._end, self.unread = None, None, []

    def wait_elsewhere(self) -> None:
        """Has another thread wait for the last steps, which are only in order with what MLX computes in their own."""
        self.prompts.note_thread()
        if self._end is not None and mlx_stream() != self._stream:
            self._end.wait()
            self._end = None

    @functools.cached_property
    def memory(self) -> mx.array:
        """Memory for activations and logits, which recorded steps share: they run one after the other."""
        return on_device(mx.zeros((-(-result_bytes(self.host.plan) // 4),), mx.uint32))

    @property
    def nbytes(self) -> int:
        """The card's memory that it has now, without what the driver has for graphs."""
        own = self.memory.nbytes if "memory" in vars(self) else 0
        return own + sum(batch.memory.nbytes for batch in self._batches.values())


class RecordedStep:
    """A decode step as a graph.

    Attributes:
        launches: how often each kernel is launched.
        batch: what it reads.
    """

    def __init__(
        self,
        steps: RecordedSteps,
        batch: RecordedBatch,
        phase: Phase,
        dims: Dims,
        kernel: StepKernel | None,
        draws: bool,
    ) -> None:
        """Lists the launches; see `RecordedSteps.record`."""
        host = steps.host
        self._steps, self.batch, self._rows = steps, batch, dims["rows"]
        self.launches: Counter[str]
        if kernel is not None:
            self.launches = kernel.counts(dims)
            own, places = _of_kernel(kernel, steps.layers, dims)
        else:
            own, self.launches = recording_of(host, steps.launches_of(phase, dims, None), dims)
            places, _ = places_of_launches(phase)
            places = {name: place for name, place in places.items() if name not in host.fixed}
        logits = phase.outputs[0]
        operands, waits = (logits, batch.numbers, "batch", "chosen"), kernel is None and overlap()
        if draws:
            choose = draw_call((*operands, batch.asked.seen), dims["rows"], waits=waits)
        else:
            choose = choose_call(operands, dims["rows"], batch.width, waits=waits)
        self._memory = steps.memory
        self._calls = [*own, choose]
        self._kept = arrays_of(self._calls, host.fixed) | {"memory": self._memory, "batch": batch.memory}
        addresses = np.array(address_table(list(self._kept.values()))).tolist()
        self._addresses: dict[str, int] = dict(zip(self._kept, addresses, strict=False))
        self._addresses["chosen"] = batch.chosen
        self._addresses |= {name: self._addresses["memory"] + place for name, place in places.items()}
        self._addresses |= {name: self._addresses["batch"] + 4 * at for name, at in batch.begins.items()}
        if any(isinstance(call, ProductCall) for call in own):
            self._kept["prompts"] = steps.prompts.memory
            self._addresses |= steps.prompts.beside_products(phase, dims["rows"])
        first = places[logits] // 4
        self.logits = self._memory[first : first + prod(bindable_shape((dims["rows"], batch.width)))].view(mx.float32)
        mx.eval(self.logits)

    def build(self, *, chooses: bool) -> None:
        """Makes what `start` starts.

        Raises:
            HostError: the driver refuses.
        """
        _ = self._choosing if chooses else self._plain

    def start(self, stream: int, end: Event, *, chooses: bool) -> None:
        """Starts it on a stream, after what the stream has been given.

        Args:
            stream: MLX's.
            end: see `LaunchGraph.launch`.
            chooses: whether it also takes the likeliest tokens.

        Raises:
            HostError: the driver refuses.
        """
        (self._choosing if chooses else self._plain).launch(stream, end)

    @functools.cached_property
    def _plain(self) -> LaunchGraph:
        return self._graph(self._calls[:-1])

    @functools.cached_property
    def _choosing(self) -> LaunchGraph:
        return self._graph(self._calls)

    def _graph(self, calls: Sequence[Call | ProductCall]) -> LaunchGraph:
        launches = [call.launch(self._addresses) for call in calls]
        return LaunchGraph(launches, [*self._kept.values(), *self.batch.of_machine], clearing_of(calls))

    def logits_of(self, tokens: mx.array, moving: mx.array, inputs: BoundInputs, token: mx.array) -> list[mx.array]:
        """Runs the step, whose tokens others choose.

        Args:
            tokens: ids, [seqs] int32.
            moving: what moves of the batch.
            inputs: the others.
            token: the arena's.

        Returns:
            Logits [rows, vocab] f32, the arena's new token, and what moves in the next step, all lazy.
        """
        steps, stream = self._steps, mlx_stream()
        assert stream is not None, "it was there when the step was recorded"
        steps.last = None
        before, after = self.batch.place(tokens, moving, inputs, token, None)
        with steps.host.failures():
            start_computing([before, *steps.unread])
            try:
                self.start(stream, steps.plain_end, chooses=False)
            finally:
                steps.plain_end.record(stream)
        logits, last = self.batch.fetch_logits(self.logits, before)
        steps.unread = [logits]  # the next step writes others to the same place
        return [logits, last, after]


class ChosenOfSteps:
    """What some recorded steps choose; see `LikeliestOfSteps`.

    Attributes:
        recorded: the steps.
        given: how many of them have been started.
        marks: after steps that were started together and whose end nobody has waited for, each with how many steps of
            the batch come before it.
        token: the arena's, before the steps.
        turn: of the step kernel after them, if these are some.
        end: after them; later ones of the host may record it again.
        asked: how their rows draw tokens; None: they do not.
    """

    def __init__(
        self,
        steps: RecordedSteps,
        batch: RecordedBatch,
        recorded: Sequence[RecordedStep],
        token: mx.array,
        end: Event,
        asked: Asked | None,
    ) -> None:
        """Notes steps that are started next.

        Args:
            steps: of the host.
            batch: what they read.
            recorded: they.
            token: the arena's, before them.
            end: after them.
            asked: how their rows draw tokens; None: they do not.
        """
        self.asked = asked
        self._host, self.batch, self.recorded, self.end, self.given = steps.host, batch, recorded, end, 0
        self._first = batch.count
        self.marks = list[tuple[int, Event]]()
        self._passed: Event | None = None  # the mark that was waited for last
        self.token = token
        self.turn: mx.array | None = None

    @functools.cached_property
    def fetched(self) -> tuple[mx.array, mx.array, mx.array]:
        """See `RecordedBatch.fetch`."""
        return self.batch.fetch(self.token)

    @property
    def tokens(self) -> mx.array:
        """See `LikeliestOfSteps.tokens`."""
        return self.fetched[0]

    @property
    def moving(self) -> mx.array:
        """What moves of the batch in the step after them; only until others have been started."""
        return self.fetched[1]

    @property
    def left(self) -> int:
        """See `LikeliestOfSteps.left`."""
        return len(self.recorded) - self.given

    @property
    def is_ending(self) -> bool:
        """See `LikeliestOfSteps.is_ending`."""
        return self.given == len(self.recorded) and len(self.marks) <= 1

    def wait_next(self) -> int:
        """Waits for the first mark; how many of the steps have ended then.

        Raises:
            HostError: one failed.
        """
        count, self._passed = self.marks.pop(0)
        self._passed.wait()
        return max(0, count - self._first)

    def read(self, before: int = 0, early: int = 0) -> npt.NDArray[np.int32]:
        """See `LikeliestOfSteps.read`."""
        mark = self._passed if early else self.end
        assert mark is not None, "what is read early has ended"
        with self._host.failures():
            mark.wait()
        return self.batch.read(self._first - before, before + (early or self.given))


def _next_of(events: deque[Event], most: int) -> Event:
    """The one of some events that was used longest ago."""
    if len(events) < most:
        events.appendleft(Event())
    else:
        events.rotate()
    return events[0]


def _wait_elsewhere(steps: "weakref.ref[RecordedSteps]", before: Callable[[], None] | None) -> None:
    """`RecordedSteps.wait_elsewhere`; other hosts of the arena, if there are any, wait as well."""
    if before is not None:
        before()
    if (own := steps()) is not None:
        own.wait_elsewhere()


def _of_kernel(kernel: StepKernel, layers: mx.array, dims: Dims) -> tuple[list[Call | ProductCall], Places]:
    """The call of a step kernel, and where its results lie in memory."""
    entry = kernel.entry
    places, _ = places_of_kernel(entry, kernel.width, dims["rows"])
    operands = [*kernel.inputs(layers, dims), "turn", *entry.outputs, "turn_out"]
    call = Call(entry.name, kernel.image, (kernel.blocks, 1, 1), entry.threads, operands, entry.pool_bytes)
    return [call], places
