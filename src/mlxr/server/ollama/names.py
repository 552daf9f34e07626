"""Names of models: Ollama's clients may add `:latest` to a name, or leave it out, and begin it with the hub's name."""

from mlxr.hub.reference import without_hub
from mlxr.server.pool.model_pool import ModelPool

_TAG = ":latest"


def own_name(pool: ModelPool, name: str) -> str:
    """The name by which the pool has a model.

    Raises:
        ApiError: there is none.
    """
    name = without_hub(name)
    known = {model.name for model in pool.models}
    for candidate in (name, name.removesuffix(_TAG), f"{name}{_TAG}"):
        if candidate in known:
            return candidate
    return pool.find(name).name
