"""A loaded model as the page looks at it: its inspectors, and its history since it was loaded."""

import asyncio
import time
from collections.abc import Mapping
from weakref import WeakKeyDictionary

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.errors import HostError
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.cpu.timed_calls import TimedCalls
from mlxr.server.inspector.history import History, watch
from mlxr.server.inspector.inspector import Inspector

_WATCHED: "WeakKeyDictionary[EngineThread, Watched]" = WeakKeyDictionary()


class Watched:
    """One engine, watched until it is closed. For the thread of an event loop.

    Attributes:
        artifact: what it runs.
        history: what it did.
        timed: times of the calls of host cpu, by phase, as far as they were measured.
    """

    def __init__(self, engine: EngineThread) -> None:
        """Begins to take samples."""
        self.artifact: Artifact = engine.model.artifact
        self.history = History(time.time())
        self._inspectors: dict[str, Inspector] = {}
        self._host = engine.model.host
        self.timed: Mapping[str, TimedCalls] = {}
        self._measuring: asyncio.Task[dict[str, TimedCalls]] | None = None
        self._watching = asyncio.create_task(watch(engine, self.history))

    async def measure(self) -> None:
        """Times the calls of host cpu; whoever asks meanwhile waits for the same.

        Raises:
            HostError: another host runs the model, or it cannot be measured here.
        """
        if not isinstance(self._host, CpuHost):
            raise HostError(f"host {self._host.name} has no calls in C: only those of host cpu are timed here")
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(asyncio.to_thread(self._host.time_calls))
        self.timed = await asyncio.shield(self._measuring)

    def inspector(self, chip: str = "") -> Inspector:
        """The inspector that predicts for a chip of this name; empty: for the artifact's own.

        Raises:
            MlxrError: there is no such chip.
        """
        if chip not in self._inspectors:
            self._inspectors[chip] = Inspector(self.artifact, find_chip(chip) if chip else None)
        return self._inspectors[chip]


def watched(engine: EngineThread) -> Watched:
    """The watched engine: the same as long as the engine is loaded. It is first asked for when that is loaded."""
    if engine not in _WATCHED:
        _WATCHED[engine] = Watched(engine)
    return _WATCHED[engine]
