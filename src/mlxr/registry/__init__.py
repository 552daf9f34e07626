"""The registry: models that a user gave names to, in one SQLite file in the user's data folder.

It says where a model's files are, and their sizes and hashes when it was added, so that a file that has changed or is
missing is noticed. The files stay where they are: nothing here removes, moves or writes one. `Registry` (registry.py)
is the only module that speaks SQL; records.py has what it takes and returns.
"""

from mlxr.compiler.errors import MlxrError


class RegistryError(MlxrError):
    """A registry that cannot be read or written, or a name that it does not have."""


class NameTakenError(RegistryError):
    """A name that the registry has already, for another model."""
