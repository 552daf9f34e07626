"""Times whole decode steps of one sequence as generation runs them, and whole prompts.

`mlxr tune` chooses the step kernel, the arena and its blocks by them. Single launches would not do: what a step kernel
saves is the CPU's work, which generation does while the GPU is busy.
"""

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlxr.bench.sequences import Sequences
from mlxr.compiler.artifact import ArenaGeometry, Artifact
from mlxr.compiler.errors import ArenaError, HostError
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.cache.arena import Arena, device_memory_bytes
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.hosts.mlx.bindable import bindable
from mlxr.runtime.hosts.select import array_host
from mlxr.tuning.random_inputs import tried_arena

_STD = 0.02
_FAILURES = (HostError, ArenaError, RuntimeError)
"""What a host or MLX says where a step cannot run, or has no memory."""


@dataclass(frozen=True)
class _Loaded:
    """See `mlxr.bench.sequences.Running`."""

    artifact: Artifact
    host: Host
    pager: Pager


class StepTimer:
    """Times artifacts that differ in geometry alone, with the same random weights and an arena of each form."""

    def __init__(self, host: str, *, rounds: int = 5, steps: int = 32) -> None:
        """Prepares.

        Args:
            host: its name.
            rounds: turns of each artifact.
            steps: of a turn; the median of all counts.
        """
        self._host, self._rounds, self._steps = host, rounds, steps

    def context_of(self, artifact: Artifact, context: int) -> int:
        """Tokens in the cache when a turn begins: as many as asked for, or fewer where its steps need the room."""
        return max(1, min(context, artifact.plan.arena.context - self._steps_of(artifact)))

    def _steps_of(self, artifact: Artifact) -> int:
        return min(self._steps, artifact.plan.arena.context - 1)

    def times_us(self, artifacts: Sequence[Artifact], context: int) -> list[float | HostError]:
        """The time of a step of each artifact, measured in turns, or why it cannot run.

        Args:
            artifacts: one or more.
            context: tokens of the sequence; see `context_of`.
        """
        steps, context = self._steps_of(artifacts[0]), self.context_of(artifacts[0], context)

        def decode(sequences: Sequences) -> list[float]:
            sequences.resize(context)
            return sequences.decode(steps)

        return self._times_us(artifacts, context, decode)

    def prompt_times_us(self, artifacts: Sequence[Artifact], tokens: int) -> list[float | HostError]:
        """The time of a prompt of so many tokens of each artifact, as `times_us`."""
        return self._times_us(artifacts, tokens, lambda sequences: [sequences.restart(tokens)])

    def _times_us(
        self, artifacts: Sequence[Artifact], context: int, run: Callable[[Sequences], list[float]]
    ) -> list[float | HostError]:
        """The median of the seconds that `run` gives in all turns, or why an artifact cannot run."""
        gc.collect()  # hosts of an earlier call hold themselves, and with them all weights
        try:
            _check_memory(artifacts, context + self._steps)
            weights, arenas = _random_weights(artifacts[0]), dict[ArenaGeometry, Arena]()
        except (HostError, RuntimeError) as error:
            return [HostError(f"no memory for whole steps: {error}")] * len(artifacts)
        steps, context = self._steps_of(artifacts[0]), self.context_of(artifacts[0], context)
        times: list[float | HostError] = []
        running: dict[int, Sequences] = {}
        for number, artifact in enumerate(artifacts):
            times.append(0.0)
            try:
                geometry = tried_arena(artifact.plan, context + steps)
                arenas[geometry] = arenas.get(geometry) or Arena(geometry)
                host = array_host(self._host)(artifact, weights, arenas[geometry])
                if host.notes:
                    raise HostError("; ".join(host.notes))
                running[number] = Sequences(_Loaded(artifact, host, Pager.from_geometry(geometry)), 1)
                running[number].restart(context)
                running[number].decode(steps)
            except _FAILURES as error:
                times[-1] = HostError(str(error))
                running.pop(number, None)
        samples: dict[int, list[float]] = {number: [] for number in running}
        for _ in range(self._rounds):
            for number, sequences in list(running.items()):
                try:
                    samples[number] += run(sequences)
                except _FAILURES as error:
                    times[number] = HostError(str(error))
                    del running[number]
        for number in running:
            times[number] = 1e6 * statistics.median(samples[number])
        return times


def _check_memory(artifacts: Sequence[Artifact], context: int) -> None:
    """Compares sizes first, since MLX may not report a lack of memory: the machine would swap, or the process die."""
    weights = sum(weight.layout.size_bytes for weight in artifacts[0].plan.weights)
    arenas = sum(geometry.size_bytes for geometry in {tried_arena(artifact.plan, context) for artifact in artifacts})
    used, memory = mx.get_active_memory(), device_memory_bytes()
    if weights + arenas + used > memory:
        raise HostError(
            f"{weights} bytes of weights, {arenas} of arenas and {used} in use exceed this machine's memory of {memory}"
        )


def _random_weights(artifact: Artifact) -> dict[str, mx.array]:
    """A buffer for each weight: a step that finds them in the cache would be too fast."""
    buffers = {}
    for weight in artifact.plan.weights:
        layout = weight.layout
        if layout.is_bytes:
            array = mx.random.randint(0, 64, (layout.size_bytes,)).astype(mx.uint8)
        else:
            array = (_STD * mx.random.normal(weight.shape)).astype(MLX_DTYPES[str(layout.dtype)])
        buffers[weight.name] = bindable(array)
        mx.eval(buffers[weight.name])
    return buffers
