"""Errors that only the engine raises."""

from mlxr.compiler.errors import MlxrError, RequestError


class EngineError(MlxrError):
    """An engine that was closed, or that can no longer run."""


class PromptTooLongError(RequestError):
    """A prompt that leaves no token of the context for the answer."""


class QueueFullError(RequestError):
    """A request that is refused because too many wait already; it may succeed later."""


class ConstraintError(RequestError):
    """A constraint on the answer that cannot be used, or cannot be followed any further.

    Attributes:
        option: the option of `Sampling` that it comes from; None: not known.
    """

    def __init__(self, message: str, option: str | None = None) -> None:
        """Keeps the option.

        Args:
            message: what is wrong; it begins with the option.
            option: as above.
        """
        super().__init__(message)
        self.option = option


class ModelClosedError(RequestError):
    """A model that was closed, perhaps by another thread meanwhile."""

    def __init__(
        self, message: str = "the model is closed: load it again, or ask before its `with` block ends"
    ) -> None:
        """Says so, or more.

        Args:
            message: what is wrong.
        """
        super().__init__(message)
