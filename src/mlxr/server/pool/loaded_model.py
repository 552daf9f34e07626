"""A model that is loaded, with what it needs to answer."""

from collections.abc import Callable
from dataclasses import dataclass, field

from mlxr.runtime.engine.default_sampling import DefaultSampling
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.memory.fitting_arena import ContextLimit
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.errors import ApiError

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LoadedModel:
    """What a model needs to answer. A request keeps it to its end, whatever becomes of the pool's `ServedModel`.

    Attributes:
        engine: answers token ids.
        chat_format: turns conversations into token ids, and answers into text, reasoning and tool calls; None: the
            model has no chat template.
        no_format: why there is none.
        template: the text of the chat template; empty: there is none.
        unused: tells the bytes that it may still take of memory that is free now.
    """

    engine: EngineThread
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
