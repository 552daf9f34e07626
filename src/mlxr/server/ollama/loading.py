"""Requests without a prompt: they load a model, or unload it."""

from typing import Literal

from mlxr.server.errors import bad_field
from mlxr.server.ollama.keep_alive import KeepAlive, seconds_of
from mlxr.server.ollama.names import own_name
from mlxr.server.pool.model_pool import ModelPool


async def loaded_or_unloaded(
    pool: ModelPool, model: str, keep_alive: KeepAlive, *, embeds: bool = False, context: int | None = None
) -> Literal["load", "unload"]:
    """Loads a model, or unloads all forms of it if `keep_alive` is 0; returns what was done.

    Args:
        pool: the models.
        model: as the client names it.
        keep_alive: of the request.
        embeds: whether the form is to be loaded that gives embeddings.
        context: that the client counts on; see `ModelPool.use`.

    Raises:
        ApiError: there is no such model, it cannot be loaded, or it is pinned and should go.
    """
    name, seconds = own_name(pool, model), seconds_of(keep_alive)
    if seconds == 0:
        if pool.find(name).pinned:
            raise bad_field("keep_alive", f"keep_alive is 0, and {name} is pinned: the server never unloads it")
        pool.find(name).keep_alive = 0.0  # if others use it still, it goes when they have ended
        await pool.unload(name)
        return "unload"
    async with pool.use(name, seconds, embeds=embeds, context=context):
        return "load"
