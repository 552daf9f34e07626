"""The engine of a served model: one that is measured."""

from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import Any

from mlxr.loading.load import load_with
from mlxr.loading.options import LoadOptions
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.engine.pool import Pooling, Vector
from mlxr.runtime.engine.prompts import Prompt
from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.cache_owner import owned
from mlxr.server.metrics.meter import Meter
from mlxr.server.pool.chosen_adapter import adapter_terms
from mlxr.server.request_record import note_end

_PAUSE_SECONDS = 0.02
"""Tokens that come within this time of the ones before are sent together: to send costs ten times what a token does."""
_PAUSE_OF_EACH = 0.00125
"""So much for each stream, if that is longer: then no more than 800 pieces a second are sent."""


class ServedEngine(EngineThread):
    """An engine whose answers a meter measures, whichever API asks; each key has a prefix cache of its own.

    Attributes:
        usual_scales: by an adapter's name its scale for requests that say nothing of any; of others, it is 0.
    """

    def __init__(
        self, model: str, options: LoadOptions, meter: Meter, usual_scales: dict[str, float], *, max_waiting: int
    ) -> None:
        """Loads the model.

        Args:
            model: what `mlxr.load` takes.
            options: how an engine loads it; see `LoadOptions.for_engine`.
            meter: outlives the engine.
            usual_scales: as the attribute; they outlive the engine, too.
            max_waiting: as for `mlxr.Engine`.
        """
        self._meter, self._is_counted = meter, False
        self.usual_scales = usual_scales
        super().__init__(partial(load_with, model, options), max_waiting=max_waiting)

    async def embed(
        self,
        prompts: Iterable[Prompt],
        pooling: Pooling | None = None,
        *,
        priority: int = 0,
        salt: str = "",
        told: Callable[[Event], object] = note_end,
    ) -> list[Vector]:
        """See `mlxr.Engine`."""
        return await super().embed(prompts, pooling, priority=priority, salt=owned(salt), told=told)

    def generate(
        self, prompt: Prompt, params: Sampling | None = None, *, salt: str = "", **terms: Any
    ) -> AsyncGenerator[Event]:
        """See `mlxr.Engine`."""
        terms |= adapter_terms(self.adapters(), self.usual_scales)
        events = super().generate(prompt, params, pause=self._pause, salt=owned(salt), **terms)
        return self._meter.observe(events, params.n if params else 1, 0 if isinstance(prompt, str) else len(prompt))

    def _pause(self) -> float:
        return max(_PAUSE_SECONDS, _PAUSE_OF_EACH * self._meter.streams)

    def close(self) -> None:
        """See `mlxr.Engine`."""
        super().close()
        if not self._is_counted and self.final_stats is not None:
            self._is_counted = True
            self._meter.retire(self.final_stats)
