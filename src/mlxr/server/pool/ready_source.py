"""A served model that was loaded before the server began: one over several ranks, which all load at the same time."""

from dataclasses import dataclass

from mlxr.model_facts import ModelFacts
from mlxr.planned_memory import PlannedMemory
from mlxr.runtime.engine.errors import EngineError
from mlxr.server.errors import api_error
from mlxr.server.metrics.meter import Meter
from mlxr.server.pool.engine_source import EngineSource
from mlxr.server.pool.served_model import LoadedModel, Progress


@dataclass(frozen=True)
class ReadySource:
    """The source of a model that can be loaded once; pin it, so that nobody unloads it.

    Attributes:
        source: what it was loaded from.
        loaded: the model.
    """

    source: EngineSource
    loaded: LoadedModel

    @property
    def name(self) -> str:
        """See `ModelSource`."""
        return self.source.name

    @property
    def meter(self) -> Meter:
        """See `ModelSource`."""
        return self.source.meter

    @property
    def set_context(self) -> int:
        """What it has."""
        return self.loaded.context

    def longest_context(self) -> int:
        """What it has."""
        return self.loaded.context

    def with_context(self, tokens: int) -> "ReadySource":
        """The same: it is loaded once."""
        return self

    def for_embeddings(self) -> "ReadySource":
        """The same: it says to requests for embeddings that it was loaded to generate, or the other way round."""
        return self

    def facts(self) -> ModelFacts:
        """See `ModelSource`."""
        return self.source.facts()

    def planned_memory(self) -> PlannedMemory:
        """Nothing: it has its memory already."""
        return PlannedMemory(0, 0, 0)

    def planned_context(self) -> str:
        """What it has."""
        return self.loaded.engine.model.context_line

    def load(self, progress: Progress, most_bytes: int | None = None) -> LoadedModel:
        """The model.

        Raises:
            ApiError: it has ended, and cannot be loaded again; a server that is started again may answer.
        """
        if (reason := self.loaded.engine.health()) is not None:
            raise api_error(EngineError(f"{reason}: the server ends"))
        return self.loaded
