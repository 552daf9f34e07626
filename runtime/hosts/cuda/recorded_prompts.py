"""Steps of prompts that are recorded once, as a CUDA graph, and then started by one call each.

MLX takes 3 to 20 us of CPU for each launch of a step, longer than the card takes for a short prompt. Padded steps have
few sizes (runtime/hosts/mlx/padding.py). As for decode steps (recorded_step.py), the graph is given to MLX's own
stream; here it also has matrix products, by the library that MLX multiplies with (matrix_library.py).

All recordings share one piece of memory, for a step's numbers, activations and logits: they run one after the other.
Not recorded are steps with other functions of MLX among their launches, with adapters (the CPU writes those) or lazy
tokens, and steps of parts of models.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from threading import Thread, current_thread
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import DType, KernelCall, Launch, MatmulCall, Phase
from mlxr.compiler.errors import HostError
from mlxr.runtime.arrays.mlx_arrays import start_computing
from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.address_table import address_table
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.launch_graph import Event, LaunchGraph
from mlxr.runtime.hosts.cuda.mlx_stream import mlx_stream
from mlxr.runtime.hosts.cuda.packed import Packed
from mlxr.runtime.hosts.cuda.prompt_choice import ChosenOfPrompt, PromptChoice
from mlxr.runtime.hosts.cuda.recorded_batch import fetch_logits, numbers_of_logits
from mlxr.runtime.hosts.cuda.recorded_calls import NORMED, SUMS, WORKSPACE, arrays_of
from mlxr.runtime.hosts.cuda.recorded_memory import Places, is_recorded, places_of_prompt, prompt_numbers
from mlxr.runtime.hosts.cuda.recorded_products import beside_bytes, is_recordable
from mlxr.runtime.hosts.cuda.recording import clearing_of, recording_of
from mlxr.runtime.hosts.cuda.sent_numbers import SentNumbers
from mlxr.runtime.hosts.host import Logits
from mlxr.runtime.hosts.mlx.bindable import bindable_shape
from mlxr.runtime.hosts.mlx.host import MlxHost

LaunchesOf = Callable[[Phase, Dims, Sequence[Launch] | None], Sequence[Launch]]
"""Gives the launches that a step needs, of all or of some, without those whose results are kept."""


class Launches(NamedTuple):
    """Launches that run under the same conditions, all of which are kernels and products.

    Attributes:
        launches: in order.
        depend_on_context: whether grids or results have its size.
    """

    launches: tuple[Launch, ...]
    depend_on_context: bool

    @classmethod
    def of(cls, phase: Phase, running: Sequence[Launch]) -> "Launches | None":
        """Those that run, if they can be recorded, and if logits are f32."""
        is_f32 = all(buffer.dtype == DType.F32 for buffer in phase.buffers if buffer.name == phase.outputs[0])
        bodies = [launch.body for launch in running]
        if not is_f32 or not all(isinstance(body, KernelCall | MatmulCall) for body in bodies):
            return None
        if not all(is_recordable(body) for body in bodies if isinstance(body, MatmulCall)):
            return None
        results = {buffer.name for buffer in phase.buffers if "context" in buffer.shape}
        extents = [e for launch in running if isinstance(launch.body, KernelCall) for e in launch.threadgroups]
        depend = any(extent.dim == "context" for extent in extents)
        return cls(tuple(running), depend or any(name in results for launch in running for name in launch.outputs))


class RecordedPrompts:
    """The recordings of a host.

    Mutable state: memory, once a step is recorded (recorded_memory.py knows how much), and what is known of the
    addresses of arrays.

    Attributes:
        host: whose launches.
        unread: what the last step has given, which is copied before the next one is started.
        end: after the last step.
        size: tokens of the last step.
        is_new_here: whether what came before may be in the stream of another thread.
    """

    def __init__(self, host: MlxHost) -> None:
        """Records nothing yet."""
        self.host = host
        self.unread = list[mx.array]()
        self.is_new_here, self.size = True, 0
        self._thread: Thread | None = None
        self._takes_some = is_recorded(host.plan)
        self._addresses: dict[int, tuple[mx.array, int]] = {}
        self._launches: dict[tuple[str | bool, ...], Launches | None] = {}

    def launches(self, phase: Phase, dims: Dims, choice: tuple[bool, ...]) -> Launches | None:
        """The launches of a step, if it can be recorded; `choice` decides which they are (`Launcher.choice`)."""
        launcher = self.host.launcher
        if not self._takes_some or launcher.exchange is not None or launcher.handover is not None:
            return None
        key = (phase.name, *choice)
        if key not in self._launches:
            self._launches[key] = Launches.of(phase, launcher.running(phase, dims))
        return self._launches[key] if mlx_stream() is not None else None

    def record(self, phase: Phase, launches: Sequence[Launch], dims: Dims, packed: Packed) -> "RecordedPrompt":
        """Records a step.

        Args:
            phase: the program's phase that runs it.
            launches: see `launches`, without those whose results are kept.
            dims: of the batch.
            packed: what it reads of the batch; in other batches of this size the same arrays have the same places.

        Raises:
            HostError: the driver or the library refuses, or there is no kernel for something.
        """
        mx.eval(*self.unread)  # products that are new run, where the results of the last step are
        return RecordedPrompt(self, phase, launches, dims, packed)

    @functools.cached_property
    def memory(self) -> mx.array:
        """Memory of all recordings: numbers, activations, logits, and what products work in."""
        return on_device(mx.zeros((-(-self.places[1] // 4),), mx.uint32))

    @functools.cached_property
    def places(self) -> tuple[Places, int]:
        """Where results lie there, and how much it is."""
        return places_of_prompt(self.host.plan)

    @functools.cached_property
    def sent(self) -> SentNumbers:
        """The way of a step's numbers to the card."""
        return SentNumbers(prompt_numbers(self.host.plan))

    @functools.cached_property
    def end(self) -> Event:
        """After the last step."""
        return Event()

    def addresses(self, arrays: Mapping[str, mx.array]) -> dict[str, int]:
        """The addresses of arrays that stay where they are, by their names."""
        known = self._addresses
        new = {id(array): array for array in arrays.values() if id(array) not in known}
        if new:
            found = np.array(address_table(list(new.values()))).tolist()
            known |= {key: (array, address) for (key, array), address in zip(new.items(), found, strict=False)}
        return {name: known[id(array)][1] for name, array in arrays.items()}

    def beside_products(self, phase: Phase, rows: int) -> dict[str, int]:
        """The addresses of what products of a decode step work in.

        Raises:
            HostError: prompts have no room for it.
        """
        names, places = (NORMED, SUMS, WORKSPACE), self.places[0]
        room = beside_bytes(self.host.program.phase("prefill"), self.host.plan.max_tokens)
        if any(needed > most for needed, most in zip(beside_bytes(phase, rows), room, strict=True)):
            raise HostError("its products need more room than those of prompts")
        first = self.addresses({"memory": self.memory})["memory"]
        return {name: first + places[name] for name in names}

    def likeliest_of(self, logits: Logits) -> ChosenOfPrompt | None:
        """See `Host.likeliest_of`: of a row that the last step has given."""
        stream = mlx_stream()
        if stream is None or not self.unread or logits is not self.unread[0] or len(logits) != 1:
            return None
        with self.host.failures():
            return self.choice.start(stream, self.size)

    @functools.cached_property
    def choice(self) -> PromptChoice:
        """What chooses the likeliest token.

        Raises:
            HostError: the driver refuses.
        """
        place = self.places[0][self.host.program.phase("prefill").outputs[0]]
        address = self.addresses({"memory": self.memory})["memory"] + place
        return PromptChoice(self.host, self.memory, address, self.host.plan.output_width)

    def note_thread(self) -> None:
        """Notes which thread takes the arena's token. Each has a stream of its own, and graphs bind no token."""
        if self._thread is not (own := current_thread()):
            self._thread, self.is_new_here = own, True

    def forget(self) -> None:
        """Forgets the last step, which may have failed."""
        self.unread = []


class RecordedPrompt:
    """A step of one size as a graph.

    Attributes:
        launches: how often each kernel and library call is launched.
    """

    def __init__(
        self, recorded: RecordedPrompts, phase: Phase, launches: Sequence[Launch], dims: Dims, packed: Packed
    ) -> None:
        """Records it; see `RecordedPrompts.record`."""
        host, (places, _) = recorded.host, recorded.places
        calls, self.launches = recording_of(host, launches, dims)
        logits, self._numbers = phase.outputs[0], len(packed.numbers)
        if self._numbers > recorded.sent.count:
            raise HostError(f"a step reads {self._numbers} numbers; planned are {recorded.sent.count}")
        is_made = any(logits in launch.outputs for launch in launches)
        _ = recorded.choice  # or the step is left to MLX
        self._recorded, self._size = recorded, dims["tokens"]
        self._shape = dims["rows"] if is_made else 0, host.plan.output_width
        arrays = arrays_of(calls, host.fixed) | {"memory": recorded.memory}
        addresses = recorded.addresses(arrays)
        self._first = addresses["memory"]
        addresses |= {name: self._first + 4 * place.start for name, place in packed.places.items()}
        addresses |= {name: self._first + place for name, place in places.items() if name not in host.fixed}
        launched = [call.launch(addresses) for call in calls]
        self._graph = LaunchGraph(launched, [*arrays.values()], clearing_of(calls))
        first = places[logits] // 4
        size = max(8, prod(bindable_shape(self._shape)))
        self._logits = recorded.memory[first : first + size].view(mx.float32)
        self._of_logits = numbers_of_logits(*self._shape)
        mx.eval(self._logits)

    def prepare(self) -> tuple[mx.array, mx.array]:
        """Has the card ready for the step, which is not run: logits are zeros, and the arena's token stays.

        Raises:
            HostError: the driver refuses.
        """
        stream = mlx_stream()
        assert stream is not None, "it was there when the step was recorded"
        self._graph.upload(stream)
        return mx.zeros(self._shape, mx.float32), self._recorded.host.arena.token

    def run(self, packed: Packed) -> tuple[mx.array, mx.array]:
        """Runs the step after the last access of the arena.

        Args:
            packed: what it reads of the batch.

        Returns:
            Logits [rows, vocab] f32 and the arena's new token, both lazy.
        """
        recorded, stream = self._recorded, mlx_stream()
        assert stream is not None, "it was there when the step was recorded"
        assert len(packed.numbers) == self._numbers, "steps of one size have as many numbers"
        host = recorded.host
        before = host.arena.token
        with host.failures():
            start_computing([before, *recorded.unread])
            if recorded.is_new_here:
                mx.eval(before, *recorded.unread)
                recorded.is_new_here = False
            recorded.sent.send(packed.numbers, self._first, stream)
            try:
                self._graph.launch(stream, recorded.end)
            finally:
                recorded.end.record(stream)
        logits, token = fetch_logits(self._logits, self._of_logits, before, self._shape)
        recorded.unread, recorded.size = [logits, token], self._size
        host.launches.update(self.launches)
        return logits, token
