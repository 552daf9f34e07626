"""A model that the server has, loaded or not."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.pool.model_source import ModelSource

State = Literal["cold", "loading", "loaded", "unloading"]


class Catalog(Protocol):
    """Models that come and go while the server runs, such as those of the registry."""

    def versions(self) -> Mapping[str, object]:
        """The names that there are now, each with what changes when it comes to mean another model."""

    def source(self, name: str) -> ModelSource:
        """Where one of them comes from."""

    def admit(self, name: str) -> None:
        """A model of this name has just come: it is served from now on."""


@dataclass(eq=False)
class ServedModel:
    """One model of the pool, as it changes while the server runs. Each load gives it a new `LoadedModel`.

    Attributes:
        source: where it comes from.
        pinned: whether it is never unloaded.
        state: whether it is loaded.
        loaded: what answers; None while it is not loaded.
        loading: ends when a load under way ends; None if there is none.
        progress: what is being loaded now, for people.
        planned_bytes: memory that it takes; 0 until that is known.
        users: requests that use it now, or wait for it.
        answering: those of them that do not wait.
        lacking: the shortest context for which memory had no room, since it was loaded; None: there was none.
        last_used: when the last request ended, by `time.monotonic`.
        created: when it was first served, in seconds since 1970.
        keep_alive: seconds after the last request at which it is unloaded; None: what the pool says.
        base: of a form that gives embeddings, the model's own name; None: it is the model itself.
        version: of the catalog that it comes from; None: it comes from none.
    """

    source: ModelSource
    pinned: bool = False
    state: State = "cold"
    loaded: LoadedModel | None = None
    loading: "asyncio.Task[None] | None" = None
    progress: str = ""
    planned_bytes: int = 0
    users: int = 0
    answering: int = 0
    lacking: int | None = None
    last_used: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))
    keep_alive: float | None = None
    base: str | None = None
    version: object = None

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.source.name

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of its adapters."""
        return tuple(adapter.own_name for adapter in self.source.options.adapters.paths)

    @property
    def is_idle(self) -> bool:
        """Whether it could be unloaded now."""
        return self.state == "loaded" and not self.users and not self.pinned
