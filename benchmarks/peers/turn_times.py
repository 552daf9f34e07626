"""Where the time of the engine's turns goes: functions are wrapped, and their seconds added up turn by turn.

Seconds are those that the engine's thread had the CPU: waiting for the interpreter's lock, which callers' threads take
now and then, and for a CPU, which the C program's own threads use, does not count.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from mlxr.runtime.engine import engine_thread, samples
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.scheduler import Scheduler
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.cpu.library import OpenProgram


class TurnTimes:
    """A clock of the engine's thread, on host cpu.

    A turn is all that the thread does from one step to the next: it takes messages, schedules, builds the batch, calls
    the C program, samples, gives tokens to requests, and sends events to callers.
    """

    def __init__(self) -> None:
        """Wraps the functions; engines that are made later are measured."""
        self._turns: list[dict[str, float]] = []
        self._turn: dict[str, float] = {}
        self._rows = 0.0
        self._time(OpenProgram, "step", "host")
        self._time(samples, "sample_rows", "sampling")
        self._time(Scheduler, "schedule", "schedule")
        self._time(EngineCore, "step", "step")
        build = Batch.build.__func__  # type: ignore[attr-defined]
        Batch.build = classmethod(self._timed(build, "batch"))  # type: ignore[method-assign, assignment]
        turn = engine_thread.EngineThread._turn

        def timed_turn(*args: Any) -> None:
            self._turn = {}
            start, begin = time.thread_time(), time.perf_counter()
            turn(*args)
            times = {"turn": time.thread_time() - start, "wall": time.perf_counter() - begin}
            self._turns.append(times | self._turn)

        engine_thread.EngineThread._turn = timed_turn  # type: ignore[method-assign]

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

    def restart(self) -> None:
        """Forgets all turns."""
        self._turns.clear()

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
