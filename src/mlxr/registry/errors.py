"""Errors of the registry."""

from mlxr.compiler.errors import MlxrError


class RegistryError(MlxrError):
    """A registry that cannot be read or written, or a name that it does not have."""


class NameTakenError(RegistryError):
    """A name that the registry has already, for another model."""
