"""Times short tasks of GPU work: chains of them, interleaved, medians.

The tasks of a chain run one after the other, as in a step: MLX sees that each needs the result of the one before. That
costs a small kernel between two tasks. It is timed alone and subtracted; what is left is a task and its launch.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlxr.compiler.errors import HostError

_LEAST = 8
_FLOOR_US = 0.01


@dataclass(frozen=True)
class TimedTask:
    """Something to time.

    Attributes:
        x: the input that stands for the result of the step before.
        run: builds the work from a turn, which counts up, and x; returns a lazy output of at least 8 elements.
    """

    x: mx.array
    run: Callable[[int, mx.array], mx.array]


class Stopwatch:
    """Times tasks."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        evaluate: Callable[[mx.array], object] = mx.eval,
        *,
        rounds: int = 7,
        chain_us: float = 3000.0,
        longest: int = 400,
    ) -> None:
        """Prepares.

        Args:
            clock: seconds.
            evaluate: runs what was built, and returns when it is done.
            rounds: how often each task is timed; the median counts.
            chain_us: how long a chain should take at least.
            longest: most tasks of a chain.
        """
        self._clock, self._evaluate = clock, evaluate
        self._rounds, self._chain_us, self._longest = rounds, chain_us, longest
        self._turn = 0
        self._yes = mx.array(True)

    def times_us(self, tasks: Sequence[TimedTask]) -> list[float | HostError]:
        """The time of each task, or why it cannot run: the median of `rounds_us`."""
        return [
            times if isinstance(times, HostError) else max(_FLOOR_US, statistics.median(times))
            for times in self.rounds_us(tasks)
        ]

    def rounds_us(self, tasks: Sequence[TimedTask]) -> list[list[float] | HostError]:
        """The time of each task in each round, or why it cannot run.

        The tasks are timed in turn, each round in another order, so that what changes meanwhile changes all of them.
        """
        errors = [self._try(task) for task in tasks]
        running = [index for index, error in enumerate(errors) if error is None]
        if not running:
            return [error for error in errors if error is not None]
        links = TimedTask(tasks[running[0]].x, lambda turn, x: x)
        length = self._length(tasks[running[0]])
        samples: dict[int, list[float]] = {index: [] for index in (-1, *running)}
        for number in range(self._rounds):
            order = list(samples)
            start = number % len(order)
            for index in order[start:] + order[:start]:
                samples[index].append(self._chain_seconds(tasks[index] if index >= 0 else links, length))
        link = statistics.median(samples[-1])
        return [
            [1e6 * (seconds - link) / length for seconds in samples[index]] if error is None else error
            for index, error in enumerate(errors)
        ]

    def _try(self, task: TimedTask) -> HostError | None:
        """Runs a task once, which also builds its kernels; the error, if it cannot run."""
        try:
            self._chain_seconds(task, 1)
        except HostError as error:
            return error
        except (RuntimeError, ValueError) as error:
            return HostError(str(error))
        return None

    def _length(self, task: TimedTask) -> int:
        seconds = min(self._chain_seconds(task, _LEAST) for _ in range(2))
        wanted = _LEAST * self._chain_us / max(1e6 * seconds, 1e-3)
        return max(_LEAST, min(self._longest, round(wanted)))

    def _chain_seconds(self, task: TimedTask, length: int) -> float:
        x = task.x
        for _ in range(length):
            # The same x, but made after the output.
            output = task.run(self._turn, x).reshape(-1)[:8].view(x.dtype)[:1]
            x = mx.where(self._yes, task.x, output)
            self._turn += 1
        start = self._clock()
        self._evaluate(x)
        return self._clock() - start
