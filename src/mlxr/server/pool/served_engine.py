"""The engine of a served model: one that is measured."""

from collections.abc import AsyncGenerator
from typing import Any

from mlxr.engine import Engine
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.model import Prompt
from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.metrics.meter import Meter


class ServedEngine(Engine):
    """An engine whose answers a meter measures, whichever API asks for them."""

    def __init__(self, model: str, meter: Meter, **options: Any) -> None:
        """Loads the model.

        Args:
            model: what `mlxr.Engine` takes.
            meter: outlives the engine.
            options: of `mlxr.Engine`.
        """
        self._meter, self._is_counted = meter, False
        super().__init__(model, **options)

    def generate(self, prompt: Prompt, params: Sampling | None = None, **terms: Any) -> AsyncGenerator[Event]:
        """See `mlxr.Engine`."""
        return self._meter.observe(super().generate(prompt, params, **terms), params.n if params else 1)

    def close(self) -> None:
        """See `mlxr.Engine`."""
        super().close()
        if not self._is_counted and self.final_stats is not None:
            self._is_counted = True
            self._meter.retire(self.final_stats)
