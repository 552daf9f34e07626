"""What models are before they are loaded, for a page that asks often: read once, beside the requests.

Only the thread of an event loop may use it.
"""

import asyncio
import logging
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from mlxr.compiler.errors import MlxrError
from mlxr.loading.model_facts import ModelFacts
from mlxr.server.pool.served_model import ServedModel

_LOG = logging.getLogger("mlxr.server")
_PATIENCE = 0.25
"""Seconds that an answer waits for facts; later ones have them."""


class KnownFacts:
    """The facts of a server's models, as far as they were read."""

    def __init__(self) -> None:
        self._facts: WeakKeyDictionary[ServedModel, ModelFacts | None] = WeakKeyDictionary()
        self._reading: asyncio.Task[None] | None = None

    async def look(self, models: Iterable[ServedModel]) -> None:
        """Reads the files' headers of those models that are not known; returns soon, whether it is done or not."""
        new = [model for model in models if model not in self._facts]
        if new and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read(new))
        if self._reading is not None and not self._reading.done():
            await asyncio.wait([self._reading], timeout=_PATIENCE)

    def of(self, model: ServedModel) -> ModelFacts | None:
        """What a model is; None: that is not known yet, or cannot be found out. Whoever loads it is told why."""
        return self._facts.get(model)

    async def _read(self, models: list[ServedModel]) -> None:
        for model in models:
            try:
                self._facts[model] = await asyncio.to_thread(model.source.facts)
            except (MlxrError, OSError):
                self._facts[model] = None
            except Exception as error:  # the files of one model must not hide what the others are
                _LOG.warning("%s: what it is cannot be found out: %s", model.name, error, exc_info=error)
                self._facts[model] = None
