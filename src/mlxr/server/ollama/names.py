"""Names of models: Ollama's clients may add `:latest` to a name, or leave it out, and begin it with the hub's name."""

from mlxr.server.pool.model_pool import ModelPool

_TAG = ":latest"
_HUBS = ("https://", "hf.co/", "huggingface.co/")


def own_name(pool: ModelPool, name: str) -> str:
    """The name by which the pool has a model.

    Raises:
        ApiError: there is none.
    """
    name = hub_name(name)
    known = {model.name for model in pool.models}
    for candidate in (name, name.removesuffix(_TAG), f"{name}{_TAG}"):
        if candidate in known:
            return candidate
    return pool.find(name).name


def hub_name(name: str) -> str:
    """A model's name without the hub's address, which Ollama's clients write: `hf.co/org/repo:Q4_K_M`."""
    for start in _HUBS:
        name = name.removeprefix(start)
    return name
