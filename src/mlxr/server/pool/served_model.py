"""A model that the server has, loaded or not."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mlxr.model_facts import ModelFacts
from mlxr.planned_memory import PlannedMemory
from mlxr.runtime.engine.default_sampling import DefaultSampling
from mlxr.runtime.engine.engine import Engine
from mlxr.runtime.memory.context_limit import ContextLimit
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.errors import ApiError
from mlxr.server.metrics.meter import Meter

State = Literal["cold", "loading", "loaded", "unloading"]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LoadedModel:
    """What a model needs to answer.

    Attributes:
        engine: answers token ids.
        chat_format: turns conversations into token ids, and answers into text, reasoning and tool calls; None: the
            model has no chat template.
        no_format: why there is none.
        template: the text of the chat template; empty: there is none.
        unused: tells the bytes that it may still take of memory that is free now.
    """

    engine: Engine
    chat_format: ChatFormat | None
    no_format: str = ""
    template: str = ""
    unused: Callable[[], int] = field(default=lambda: 0, repr=False)

    @property
    def format(self) -> ChatFormat:
        """How the model writes conversations.

        Raises:
            ApiError: it has no chat template.
        """
        if self.chat_format is None:
            message = f"this model cannot chat: {self.no_format}; ask /v1/completions, or a model that was made to chat"
            raise ApiError(400, message, code="no_chat_template", param="model")
        return self.chat_format

    @property
    def context(self) -> int:
        """Most tokens of prompt and answer."""
        return self.limit.tokens

    @property
    def limit(self) -> ContextLimit:
        """Of its context."""
        return self.engine.model.limit

    @property
    def default_sampling(self) -> DefaultSampling:
        """How its own files say that tokens are chosen."""
        return self.engine.model.default_sampling


class ModelSource(Protocol):
    """Where a served model comes from."""

    @property
    def name(self) -> str:
        """What requests call it."""

    @property
    def meter(self) -> Meter:
        """Measures its answers; the same for each source of this name that a server has had."""

    @property
    def set_context(self) -> int | None:
        """The context that the server was told to load it with; None: the model and memory decide."""

    def longest_context(self) -> int:
        """The longest context that it may have. Slow the first time: it reads files' headers.

        Raises:
            MlxrError: it cannot be found, or is not supported.
        """

    def with_context(self, tokens: int) -> "ModelSource":
        """The same model with this context, if memory has room for it."""

    def for_embeddings(self) -> "ModelSource":
        """The same model in the form that gives embeddings, which takes memory of its own."""

    def facts(self) -> ModelFacts:
        """What it is, without loading it. Slow the first time: it reads files' headers.

        Raises:
            MlxrError: it cannot be found, or is not supported.
        """

    def planned_memory(self) -> PlannedMemory:
        """What it takes when it is loaded. Slow: it may compile.

        Raises:
            MlxrError: it cannot be found or compiled.
        """

    def planned_context(self) -> str:
        """How long a sequence could be if it were loaded now, and why, for people. Slow: it may compile.

        Raises:
            MlxrError: it cannot be found, compiled or loaded.
        """

    def load(self, progress: Progress, most_bytes: int | None = None) -> LoadedModel:
        """Loads it. Slow.

        Args:
            progress: is told how far it is.
            most_bytes: memory that it may take, less than it was planned with; None: as planned.

        Raises:
            MlxrError: it cannot be loaded.
        """


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
    """One model of the pool.

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
    def is_idle(self) -> bool:
        """Whether it could be unloaded now."""
        return self.state == "loaded" and not self.users and not self.pinned
