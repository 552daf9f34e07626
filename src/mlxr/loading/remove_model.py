"""Takes a model out of the registry, and out of MLXR's own cache. The model's files stay as they are."""

from pathlib import Path

from mlxr.loading.artifact_cache import discard
from mlxr.registry.registry import Registry


def remove_model(name: str) -> tuple[Path, ...]:
    """Removes a registered model's name, and what it was compiled to if no other registered model needs that.

    Returns:
        The folders that were removed from the cache.

    Raises:
        RegistryError: there is no such model, or the registry cannot be written.
    """
    return tuple(artifact.folder for artifact in Registry().remove(name) if discard(artifact.folder))
