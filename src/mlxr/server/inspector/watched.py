"""A loaded model as the page looks at it: its inspectors, and its history since it was loaded."""

import asyncio
import time
from weakref import WeakKeyDictionary

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.chips.catalog import find_chip
from mlxr.runtime.engine.engine import Engine
from mlxr.server.inspector.history import History, watch
from mlxr.server.inspector.inspector import Inspector

_WATCHED: "WeakKeyDictionary[Engine, Watched]" = WeakKeyDictionary()


class Watched:
    """One engine, watched until it is closed. For the thread of an event loop."""

    def __init__(self, engine: Engine) -> None:
        """Begins to take samples."""
        self.artifact: Artifact = engine.model.artifact
        self.history = History(time.time())
        self._inspectors: dict[str, Inspector] = {}
        self._watching = asyncio.create_task(watch(engine, self.history))

    def inspector(self, chip: str = "") -> Inspector:
        """The inspector that predicts for a chip of this name; empty: for the artifact's own.

        Raises:
            MlxrError: there is no such chip.
        """
        if chip not in self._inspectors:
            self._inspectors[chip] = Inspector(self.artifact, find_chip(chip) if chip else None)
        return self._inspectors[chip]


def watched(engine: Engine) -> Watched:
    """The watched engine: the same as long as the engine is loaded. It is first asked for when that is loaded."""
    if engine not in _WATCHED:
        _WATCHED[engine] = Watched(engine)
    return _WATCHED[engine]
