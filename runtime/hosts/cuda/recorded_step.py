"""Decode steps that are recorded once, as a CUDA graph, and then started by one call each.

The graph is given to MLX's own stream (mlx_stream.py), once MLX has been given what comes before it, and whoever needs
the step needs what is fetched after it (recorded_batch.py). A graph has all launches of a step, or its step kernel. If
all rows take their likeliest token, it also chooses the tokens, and the step after begins with them: MLX, which takes 5
to 20 us of CPU for each launch, has two launches for several steps, and none for those that follow with the same
sequences.

Recorded launches use the same memory in each step: the batch, activations and logits have places of their own. Weights
and the arena's stores are where they are (address_table.py). Matrix products work where those of recorded prompts do.
Not recorded are steps with other functions of MLX among their launches, with adapters (the CPU writes those), and of
parts of models.
"""

import functools
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
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
from mlxr.runtime.hosts.cuda.launch_graph import Event, LaunchGraph, overlap
from mlxr.runtime.hosts.cuda.mlx_stream import mlx_stream
from mlxr.runtime.hosts.cuda.packed import BoundInputs
from mlxr.runtime.hosts.cuda.recorded_batch import (
    CHOOSE,
    CHOOSE_THREADS,
    MOST_LAUNCHES,
    RecordedBatch,
    choosing_grid,
    recorded_image,
)
from mlxr.runtime.hosts.cuda.recorded_calls import Call, ProductCall, arrays_of
from mlxr.runtime.hosts.cuda.recorded_memory import (
    Places,
    is_recorded,
    places_of_kernel,
    places_of_launches,
    result_bytes,
)
from mlxr.runtime.hosts.cuda.recorded_prompts import Launches, LaunchesOf, RecordedPrompts
from mlxr.runtime.hosts.cuda.recording import recording_of
from mlxr.runtime.hosts.cuda.step_kernel import StepKernel
from mlxr.runtime.hosts.mlx.bindable import bindable_shape
from mlxr.runtime.hosts.mlx.host import MlxHost


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
        self._ends: deque[tuple[Event, Event]] = deque()  # of launches, and of their first steps
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

    def record(self, phase: Phase, dims: Dims, inputs: BoundInputs, kernel: StepKernel | None) -> "RecordedStep":
        """A step that it takes, by launches or by a step kernel.

        Raises:
            HostError: the driver refuses.
        """
        mx.eval(*self.unread)  # products that are new run, where the results of the last step are
        width = self.host.plan.output_width
        key = (dims["rows"], len(inputs.moving.numbers), len(inputs.steady.packed.numbers))
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = RecordedBatch(dims, inputs, width)
        return RecordedStep(self, batch, phase, dims, kernel)

    def choose(
        self,
        recorded: Sequence["RecordedStep"],
        tokens: mx.array | None,
        moving: Callable[[], mx.array],
        inputs: BoundInputs,
        kernel: StepKernel | None,
        early: int = 0,
    ) -> "ChosenOfSteps":
        """Runs steps, each of which takes the likeliest tokens of the one before.

        Args:
            recorded: each of them; they read one batch.
            tokens: ids of the first, [seqs] int32; None: they go on after the last ones, as `may_go_on` allows.
            moving: gives what moves of the first.
            inputs: what else they read.
            kernel: what runs them; the lock of its turns is held.
            early: how many of them can be waited for before all have ended; 0: none.

        Raises:
            HostError: MLX or the driver refuses.
        """
        host, stream, batch = self.host, mlx_stream(), recorded[0].batch
        assert stream is not None, "it was there when the steps were recorded"
        token, turn = host.arena.token, None if kernel is None else StepKernel.take_turn()
        with host.failures():
            goes_on = tokens is None or self._goes_on(batch, tokens, token, turn, stream)
            self.last = None  # until all have been started
            if not goes_on:
                assert tokens is not None, "steps that go on have been excluded"
                token, _ = batch.place(tokens, moving(), inputs, token, turn)
                start_computing([token, *self.unread])
                self.unread = []
            if len(self._ends) < MOST_LAUNCHES:
                self._ends.append((Event(), Event()))
            self._ends.rotate()
            end, first_end = self._ends[0]
            if goes_on:
                end.wait()  # see `RecordedBatch.renew`
            try:
                if goes_on:
                    batch.renew(inputs, stream, end)
                for number, step in enumerate(recorded, 1):
                    batch.count += 1
                    step.start(stream, end, chooses=True)
                    if number == early:
                        first_end.record(stream)
            finally:
                end.record(stream)
        chosen = ChosenOfSteps(host, batch, len(recorded), token, end, first_end)
        if kernel is not None:
            if len(StepKernel.models) > 1:
                StepKernel.give_turn(chosen.fetched[2])
            chosen.turn = StepKernel.turn
        self.last, self._end, self._stream = chosen, end, stream
        host.arena.token = token
        return chosen

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
        self, steps: RecordedSteps, batch: RecordedBatch, phase: Phase, dims: Dims, kernel: StepKernel | None
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
        operands = (logits, batch.numbers, "batch", "chosen")
        waits = kernel is None and overlap()
        grid = choosing_grid(dims["rows"], batch.width)
        choose = Call(CHOOSE, recorded_image(), grid, CHOOSE_THREADS, operands, waits=waits)
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
        return LaunchGraph(launches, [*self._kept.values(), self.batch.pinned])

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
        token: the arena's, before the steps.
        turn: of the step kernel after them, if these are some.
        end: after them; later ones of the host may record it again.
    """

    def __init__(
        self, host: MlxHost, batch: RecordedBatch, steps: int, token: mx.array, end: Event, first_end: Event
    ) -> None:
        """Notes steps that have been started, the last ones of a batch.

        Args:
            host: where.
            batch: what they read.
            steps: how many.
            token: the arena's, before them.
            end: after them.
            first_end: after the first ones, if these can be waited for.
        """
        self._host, self.batch, self._steps, self.end, self._first_end = host, batch, steps, end, first_end
        self._first = batch.count - steps
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

    def wait_early(self) -> None:
        """See `LikeliestOfSteps.wait_early`."""
        with self._host.failures():
            self._first_end.wait()

    def read(self, before: int = 0, early: int = 0) -> npt.NDArray[np.int32]:
        """See `LikeliestOfSteps.read`."""
        with self._host.failures():
            (self._first_end if early else self.end).wait()
        return self.batch.read(self._first - before, before + (early or self._steps))


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
