"""The error of the hub."""

from mlxr.compiler.errors import MlxrError


class HubError(MlxrError):
    """A model that cannot be fetched from the hub."""
