"""Steps of prompts: recorded, or launched by MLX.

MLX launches them in parts, so that the GPU starts with the first layers while the CPU works on the others. Padded steps
have few sizes (see runtime/hosts/mlx/padding.py), all of which are recorded or traced at load. The first step of
another size is neither: it may be the only one.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import mlx.core as mx

from mlxr.compiler.artifact import ARENA_TOKEN, Launch, Phase
from mlxr.compiler.errors import HostError
from mlxr.runtime.arrays.mlx_arrays import start_computing
from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.packed import Packed
from mlxr.runtime.hosts.cuda.recorded_memory import most_prompts
from mlxr.runtime.hosts.cuda.recorded_prompts import LaunchesOf, RecordedPrompt, RecordedPrompts
from mlxr.runtime.hosts.cuda.traces import Key, RecentTraces, Trace, traced, untraced
from mlxr.runtime.hosts.mlx.host import MlxHost, sent_by
from mlxr.runtime.hosts.mlx.launcher import Arrays

_PART = 16
"""Launches that are given to the GPU together: few, because all weights that they unpack use memory."""
_PARTS_AHEAD = 6
"""Most parts that wait for the GPU: their outputs use memory too."""


class PrefillSteps:
    """The steps of prompts that a host has run.

    Attributes:
        recorded: the recordings.
        num_recorded: how many of them were recorded steps.
        notes: messages for people: that steps are not recorded, and why.
        only_prepares: whether steps that are recorded are not run.
    """

    def __init__(self, host: MlxHost, launches_of: LaunchesOf) -> None:
        """Traces nothing yet.

        Args:
            host: launches, and counts launches.
            launches_of: those that a step needs, of all or of some; called before it is recorded or traced.
        """
        self._host, self._launches_of = host, launches_of
        self.recorded = RecordedPrompts(host)
        self._recent: RecentTraces[list[Trace] | None] = RecentTraces()
        self._recent_recorded, self._met = RecentTraces[RecordedPrompt](), RecentTraces[None]()
        self._recent_recorded.most = most_prompts(host.plan)
        self.num_recorded = 0
        self.notes: tuple[str, ...] = ()
        self.only_prepares = False
        self._context_matters = any(
            "context" in buffer.shape
            for phase in host.program.phases
            if phase.name == "prefill"
            for buffer in phase.buffers
        )

    def run(
        self,
        phase: Phase,
        dims: Dims,
        packed: Packed,
        others: Mapping[str, mx.array],
        tops: int,
        *,
        traces: bool = True,
    ) -> tuple[mx.array, mx.array]:
        """Launches a step.

        Args:
            phase: the program's phase that runs it.
            dims: of the batch.
            packed: what the step reads of the batch.
            others: the same that is on the GPU already.
            tops: how many of the greatest logits are exchanged; 0: all.
            traces: whether it may be recorded or traced.

        Returns:
            See `MlxHost.launch_step`.
        """
        host = self._host
        places = (*(place.start for place in packed.places.values()), len(packed.numbers))
        if traces and not others and (step := self._recorded_step(phase, dims, packed, places)) is not None:
            if self.only_prepares:
                return step.prepare()
            self.num_recorded += 1
            return step.run(packed)
        uploaded = packed.upload()
        parts = self._parts_of(phase, dims, tops, (*places, len(others)), traces=traces)
        available: Arrays = {**others, **packed.unpack(uploaded), ARENA_TOKEN: host.arena.token}
        started: list[mx.array] = []
        with host.failures():
            for part in parts:
                start_computing(available.values())
                if len(started) >= _PARTS_AHEAD:
                    mx.eval(started[-_PARTS_AHEAD])
                before, available = available, part.run(available)
                # The last part of a step without logits may have no output that anyone reads.
                if new := [available[name] for name in available.keys() - before.keys()]:
                    started.append(min(new, key=lambda array: array.nbytes))
                host.launches.update(part.launches)
        return host.results_of(phase, dims, available)

    def forget(self) -> None:
        """Forgets what the last step left on the GPU, which may have failed."""
        self.recorded.forget()

    def _recorded_step(self, phase: Phase, dims: Dims, packed: Packed, places: Key) -> RecordedPrompt | None:
        """The recording of a step, if there is one, or if it is worth one."""
        if self.notes:
            return None
        choice = self._host.launcher.choice(phase, dims)
        found = self.recorded.launches(phase, dims, choice)
        if found is None:
            return None
        sizes = [size for name, size in dims.items() if name != "context" or found.depend_on_context]
        key = (phase.name, *sizes, *choice, *places)
        step = self._recent_recorded.get(key)
        if step is None and key not in self._met and not self._has_few_sizes(dims):
            self._met.keep(key, None)
            return None
        if step is None:
            try:
                launches = self._launches_of(phase, dims, found.launches)
                step = self.recorded.record(phase, launches, dims, packed)
            except (HostError, RuntimeError, ValueError) as error:
                self.notes = (f"prompts are launched by MLX and not recorded, slower: {error}",)
                self._host.notes += self.notes
                return None
        self._recent_recorded.keep(key, step)
        return step

    def _parts_of(self, phase: Phase, dims: Dims, tops: int, places: Key, *, traces: bool) -> list[Trace]:
        key = (*self._key(phase, dims), tops, *places)
        parts = self._recent.get(key)
        if parts is not None:
            self._recent.keep(key, parts)
            return parts
        traces = traces and (key in self._recent or self._has_few_sizes(dims))
        parts = self._cut(phase, dims, tops, traces=traces)
        self._recent.keep(key, parts if traces else None)
        return parts

    def _has_few_sizes(self, dims: Dims) -> bool:
        return bool(self._host.plan.padded_sizes) and dims["seqs"] == 1 and dims["rows"] <= 1

    def _key(self, phase: Phase, dims: Dims) -> Key:
        """What the trace of a step depends on; on the context only if a buffer has its size."""
        sizes = {name: size for name, size in dims.items() if name != "context" or self._context_matters}
        return (phase.name, *sizes.values(), *self._host.launcher.choice(phase, dims))

    def _cut(self, phase: Phase, dims: Dims, tops: int, *, traces: bool) -> list[Trace]:
        """The step in parts, each a function of all arrays that its launches and those of later parts read."""
        launches = self._launches_of(phase, dims, None)
        cuts = [*range(0, len(launches), _PART), len(launches)]
        parts, needed = [], {*phase.outputs, *sent_by(phase)}
        if len(phase.outputs) == 1:  # a model that caches nothing passes no token on: the arena keeps its own
            needed.add(ARENA_TOKEN)
        for start, end in reversed(list(pairwise(cuts))):
            part = self._part(phase, launches[start:end], dims, tops, frozenset(needed))
            parts.append(traced(self._host, part) if traces else untraced(part))
            needed.update(*(launch.inputs for launch in launches[start:end]))
        return parts[::-1]

    def _part(
        self, phase: Phase, launches: Sequence[Launch], dims: Dims, tops: int, needed: frozenset[str]
    ) -> Callable[[Arrays], Arrays]:
        passed = [name for name in needed if name not in self._host.fixed]

        def run(arrays: Arrays) -> Arrays:
            outputs = self._host.run_launches(phase, launches, dims, arrays, tops)
            return {name: outputs[name] for name in passed if name in outputs}

        return run
