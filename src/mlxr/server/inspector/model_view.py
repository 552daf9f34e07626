"""What the page shows of each model that the server has, loaded or not."""

from typing import Any

from mlxr.compiler.spec.record import Record
from mlxr.loading.model_facts import ModelFacts
from mlxr.server.pool.served_model import ServedModel, State


class FactsView(Record):
    """What a model is, loaded or not.

    Attributes:
        size_bytes: bytes of its files.
        format: of the weights, such as `gguf`; quantization: the format of most of them, such as `Q4_K_M`.
        family: the name of its tensors' naming, such as `llama`.
        num_parameters, num_layers, vocab_size: as they say.
        context: the longest that it was made for; memory may have room for less.
    """

    size_bytes: int
    format: str
    quantization: str
    family: str
    num_parameters: int
    num_layers: int
    vocab_size: int
    context: int


class ModelView(Record):
    """A model that the server has.

    Attributes:
        name: what requests call it.
        state: whether it is loaded.
        progress: what is being loaded now, for people; empty: nothing.
        pinned: whether it is never unloaded.
        users: requests that use it now.
        planned_bytes: memory that it takes; 0 until that is known.
        base: of a form that gives embeddings, the model's own name; null: it is the model itself.
        can_chat: whether it has a chat template; null as long as its files were not read.
        no_chat: why it has none; empty until it is loaded.
        context: most tokens of prompt and answer; null until it is loaded.
        facts: what it is; null as long as its files were not read.
        sampling: what requests get that do not say how tokens are chosen, by the names of the fields; null
            as long as its files were not read.
        sampling_source: what says so, for people.
    """

    name: str
    state: State
    progress: str
    pinned: bool
    users: int
    planned_bytes: int
    base: str | None
    can_chat: bool | None
    no_chat: str
    context: int | None
    facts: FactsView | None
    sampling: dict[str, Any] | None
    sampling_source: str


def model_view(model: ServedModel, facts: ModelFacts | None = None) -> ModelView:
    """The state of a model, now; `facts`: what is known of its files."""
    loaded = model.loaded
    can_chat = None if facts is None else facts.templates is not None
    sampling = None if facts is None else facts.sampling
    if loaded is not None:
        sampling = loaded.default_sampling
        can_chat = loaded.chat_format is not None
    if model.base is not None:  # it is for embeddings
        can_chat = False
    return ModelView(
        name=model.name,
        state=model.state,
        progress=model.progress,
        pinned=model.pinned,
        users=model.users,
        planned_bytes=model.planned_bytes,
        base=model.base,
        can_chat=can_chat,
        no_chat="" if loaded is None else loaded.no_format,
        context=None if loaded is None else loaded.context,
        facts=None if facts is None else _facts_view(facts),
        sampling=None if sampling is None else dict(sampling.options),
        sampling_source="" if sampling is None else sampling.source,
    )


def _facts_view(facts: ModelFacts) -> FactsView:
    return FactsView(**{name: getattr(facts, name) for name in FactsView.model_fields})
