"""Which LoRA adapter a request uses: the one that its model's name names, or those of its `lora` field."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TypedDict

from mlxr.runtime.engine.adapter_set import LoadedAdapter
from mlxr.server.errors import ApiError, bad_field

Scales = Sequence[tuple[int, float]]
"""Numbers of adapters, in the order of /lora-adapters, each with its scale."""

_NAMED: ContextVar[str | None] = ContextVar("named_adapter", default=None)
_ASKED: ContextVar[Scales | None] = ContextVar("asked_adapters", default=None)


class AdapterTerms(TypedDict, total=False):
    """How the engine is asked for an adapter."""

    adapter: str
    adapter_scale: float


def name_adapter(name: str | None) -> None:
    """From now on, this task answers a request whose model's name names an adapter; None: it names none."""
    _NAMED.set(name)


def ask_adapters(scales: Scales | None) -> None:
    """From now on, this task answers a request with this `lora` field; None: it has none."""
    _ASKED.set(scales)


def adapter_terms(loaded: Sequence[LoadedAdapter], usual: Mapping[str, float]) -> AdapterTerms:
    """What this task's request uses.

    Args:
        loaded: the adapters of its model.
        usual: by adapters' names, the scales for requests that say nothing.

    Raises:
        ApiError: adapters that there are not, or several at once.
    """
    named, asked = _NAMED.get(), _ASKED.get()
    if named is not None:
        if asked:
            raise bad_field("lora", f"model names the adapter {named!r}, and lora others: give one of them")
        return AdapterTerms(adapter=named)
    if asked is None:
        asked = [(number, usual.get(adapter.name, 0.0)) for number, adapter in enumerate(loaded)]
    return one_of(loaded, asked)


def one_of(loaded: Sequence[LoadedAdapter], scales: Scales) -> AdapterTerms:
    """The one adapter that scales choose; none, if all of them are 0.

    Raises:
        ApiError: there is none of a number, or several have a scale.
    """
    for number, _ in scales:
        if not 0 <= number < len(loaded):
            raise bad_field("lora", f"lora has the id {number}, and this model has {len(loaded)} adapters, from 0 on")
    chosen = {number: scale for number, scale in scales if scale}
    if not chosen:
        return AdapterTerms()
    if len(chosen) > 1:
        raise ApiError(
            400,
            "lora gives several adapters a scale, and a request uses one: give the others 0, or merge them",
            code="several_adapters",
            param="lora",
        )
    ((number, scale),) = chosen.items()
    return AdapterTerms(adapter=loaded[number].name, adapter_scale=scale)
