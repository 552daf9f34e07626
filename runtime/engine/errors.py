"""Errors of requests that the engine alone raises."""

from mlxr.compiler.errors import RequestError


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

    def __init__(self) -> None:
        """Says so."""
        super().__init__("the model is closed: load it again, or ask before its `with` block ends")
