"""Where the time of the engine's turns goes: functions are wrapped, and their seconds added up turn by turn.

Seconds are those that the engine's thread had the CPU: waiting for the interpreter's lock, which callers' threads take
now and then, and for a CPU, which the C program's own threads use, does not count. Waiting for memory does: a step
reads all weights, after which the CPU's caches have lost the requests. To tell Python's own work from that, steps can
be skipped.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from mlxr.runtime.engine import engine, samples
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.scheduler import Scheduler
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.cpu.library import CBatch, OpenProgram


class TurnTimes:
    """A clock of the engine's thread, on host cpu.

    A turn is all that the thread does from one step to the next: it takes messages, schedules, builds the batch, calls
    the C program, samples, gives tokens to requests, and sends events to callers.
    """

    def __init__(self) -> None:
        """Wraps the functions; engines that are made later are measured."""
        self._turns: list[dict[str, float]] = []
        self._turn: dict[str, float] = {}
        self._skips_host = False
        self._time(OpenProgram, "step", "host")
        run = OpenProgram.step

        def run_or_skip(program: OpenProgram, batch: CBatch) -> None:
            if self._skips_host:
                self._turn["host"] = 0.0
            else:
                run(program, batch)

        OpenProgram.step = run_or_skip  # type: ignore[method-assign]
        self._time(samples, "sample_rows", "sampling")
        self._time(Scheduler, "schedule", "schedule")
        self._time(EngineCore, "step", "step")
        build = Batch.build.__func__  # type: ignore[attr-defined]
        Batch.build = classmethod(self._timed(build, "batch"))  # type: ignore[method-assign, assignment]
        turn = engine.Engine._turn

        def timed_turn(*args: Any) -> None:
            self._turn = {}
            start, begin = time.thread_time(), time.perf_counter()
            turn(*args)
            times = {"turn": time.thread_time() - start, "wall": time.perf_counter() - begin}
            self._turns.append(times | self._turn)

        engine.Engine._turn = timed_turn  # type: ignore[method-assign]

    def _time(self, owner: Any, function: str, name: str) -> None:
        setattr(owner, function, self._timed(getattr(owner, function), name))

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                self._turn[name] = self._turn.get(name, 0.0) + time.thread_time() - start
                if name == "sampling":
                    self._turn["rows"] = len(args[1])

        return timed

    def restart(self, *, skips_host: bool = False) -> None:
        """Forgets all turns.

        Args:
            skips_host: whether steps from now on compute nothing, so that tokens are of no use.
        """
        self._turns.clear()
        self._skips_host = skips_host

    def medians(self, rows: int) -> dict[str, float]:
        """Median seconds over the turns that sampled so many tokens.

        Returns:
            By name: `wall`, by the clock on the wall; `turn`; of that, `host` (the C program), `sampling`
            (`sample_rows`), and `overhead`, the rest. Of the overhead, `schedule`, `batch` (`Batch.build`), and
            `events` (messages, and events sent to callers).
        """
        turns = [turn for turn in self._turns if turn.get("rows") == rows]
        for turn in turns:
            turn["overhead"] = turn["turn"] - turn["host"] - turn["sampling"]
            turn["events"] = turn["turn"] - turn["step"]
        names = ("wall", "turn", "host", "sampling", "overhead", "schedule", "batch", "events")
        return {name: statistics.median(turn[name] for turn in turns) for name in names}
