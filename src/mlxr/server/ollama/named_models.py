"""Models as Ollama's clients name them, and how long they stay loaded after a request."""

import re
from typing import Literal

from mlxr.hub.reference import without_hub
from mlxr.server.errors import bad_field, quoted_json
from mlxr.server.pool.model_pool import FOREVER, ModelPool

KeepAlive = str | float | int | None
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_LONGEST = 100 * 365 * 86400.0
"""What is longer is for ever: no clock tells when it would end."""
_NUMBER = re.compile(r"\d+(\.\d*)?")
_TAG = ":latest"


def own_name(pool: ModelPool, name: str) -> str:
    """The name by which the pool has a model.

    Clients may add `:latest` to a name, or leave it out, and begin it with the hub's name.

    Raises:
        ApiError: there is none.
    """
    name = without_hub(name)
    known = {model.name for model in pool.models}
    for candidate in (name, name.removesuffix(_TAG), f"{name}{_TAG}"):
        if candidate in known:
            return candidate
    model, adapter = pool.resolve(name)
    return model.name if adapter is None else f"{model.name}:{adapter}"


def seconds_of(keep_alive: KeepAlive) -> float | None:
    """Seconds; None: the server decides.

    Args:
        keep_alive: a number of seconds, or a text such as `5m` or `1h30m`; less than 0, or a hundred years: for ever.

    Raises:
        ApiError: it is no time.
    """
    if keep_alive is None:
        return None
    if isinstance(keep_alive, str):
        text = keep_alive.strip()
        is_negative, digits = text.startswith("-"), text.lstrip("+-")
        if _NUMBER.fullmatch(digits):
            seconds = float(digits)
        elif digits and not _PART.sub("", digits):
            seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(digits))
        else:
            raise bad_field(
                "keep_alive",
                f"keep_alive is {quoted_json(keep_alive)}; expected seconds, a time such as 10m, or -1 for ever",
            )
        keep_alive = -seconds if is_negative else seconds
    return float(keep_alive) if 0 <= keep_alive <= _LONGEST else FOREVER


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
