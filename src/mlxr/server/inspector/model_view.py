"""What the page shows of each model that the server has, loaded or not."""

from typing import Any

from mlxr.compiler.spec.record import Record
from mlxr.server.pool.served_model import ServedModel, State


class ModelView(Record):
    """A model that the server has.

    Attributes:
        name: what requests call it.
        state: whether it is loaded.
        progress: what is being loaded now, for people; empty: nothing.
        pinned: whether it is never unloaded.
        users: requests that use it now.
        planned_bytes: memory that it takes; 0 until that is known.
        can_chat: whether it has a chat template; null until it is loaded.
        no_chat: why it has none.
        context: most tokens of prompt and answer; null until it is loaded.
        sampling: what requests get that do not say how tokens are chosen, by the names of the fields; null until it is
            loaded.
        sampling_source: what says so, for people.
    """

    name: str
    state: State
    progress: str
    pinned: bool
    users: int
    planned_bytes: int
    can_chat: bool | None
    no_chat: str
    context: int | None
    sampling: dict[str, Any] | None
    sampling_source: str


def model_view(model: ServedModel) -> ModelView:
    """The state of a model, now."""
    loaded = model.loaded
    can_chat = None if loaded is None else loaded.chat_format is not None
    if model.base is not None:  # it is for embeddings
        can_chat = False
    return ModelView(
        name=model.name,
        state=model.state,
        progress=model.progress,
        pinned=model.pinned,
        users=model.users,
        planned_bytes=model.planned_bytes,
        can_chat=can_chat,
        no_chat="" if loaded is None else loaded.no_format,
        context=None if loaded is None else loaded.context,
        sampling=None if loaded is None else dict(loaded.default_sampling.options),
        sampling_source="" if loaded is None else loaded.default_sampling.source,
    )
