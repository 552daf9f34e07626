"""The adapters with which a model is loaded, and the places that it is compiled with for them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mlxr.compiler.errors import RequestError
from mlxr.compiler.spec.adapters import MOST_ADAPTERS, MOST_RANK, RANK_STEP, Adapters
from mlxr.loading.path_exists import path_exists
from mlxr.runtime.adapters.adapter_name import adapter_name

AnyAdapter = str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]
"""An adapter that all requests use, or by name those of which requests choose."""


@dataclass(frozen=True)
class AdapterPath:
    """An adapter to load.

    Attributes:
        path: a folder with adapter_config.json, or a GGUF file.
        name: by which requests ask for it; None: that of the folder or file.
        scale: by what it is multiplied.
    """

    path: str
    name: str | None = None
    scale: float = 1.0

    @property
    def own_name(self) -> str:
        """By which requests ask for it."""
        return self.name or adapter_name(self.path)


def adapter_paths(adapter: AnyAdapter | None) -> "GivenAdapters":
    """What `adapter` of `mlxr.load` says: one for all requests, or several by name; each may end with :SCALE."""
    if adapter is None:
        return NO_ADAPTERS
    if isinstance(adapter, Mapping):
        paths = tuple(parse_adapter(os.fspath(path), name) for name, path in adapter.items())
        return GivenAdapters(paths)
    if not isinstance(adapter, str | os.PathLike):
        raise TypeError(f"adapter is {adapter!r}, expected a path, or a mapping of names to paths")
    return GivenAdapters((parse_adapter(os.fspath(adapter)),), for_all=True)


def parse_adapter(text: str, name: str | None = None) -> AdapterPath:
    """An adapter from PATH or PATH:SCALE.

    Raises:
        RequestError: the scale is no number.
    """
    path, colon, scale = text.rpartition(":")
    if not colon or path_exists(text):
        return AdapterPath(text, name)
    try:
        return AdapterPath(path, name, float(scale))
    except ValueError:
        if "/" in scale or "\\" in scale:  # a colon of the path
            return AdapterPath(text, name)
        raise RequestError(f"{text}: the scale of the adapter, {scale!r}, is not a number") from None


@dataclass(frozen=True)
class GivenAdapters:
    """The adapters with which a model is loaded.

    Attributes:
        paths: they.
        for_all: whether requests that name none use the first one.
        rank: of the places; None: the highest of theirs.
        slots: how many places there are at least; 0: as many as adapters.
    """

    paths: tuple[AdapterPath, ...] = ()
    for_all: bool = False
    rank: int | None = None
    slots: int = 0

    def __bool__(self) -> bool:
        return bool(self.paths) or self.slots != 0

    def places(self) -> Adapters:
        """The places that they need.

        Raises:
            RequestError: a rank or a number of places that there cannot be.
            WeightsError: an adapter cannot be opened.
        """
        from mlxr.runtime.adapters.open_adapter import open_adapter  # noqa: PLC0415 (loads MLX)

        ranks = [open_adapter(adapter.path).rank for adapter in self.paths]
        rank = self.rank or max(ranks, default=2 * RANK_STEP)
        rank = -(-rank // RANK_STEP) * RANK_STEP
        if not 0 < rank <= MOST_RANK:
            raise RequestError(f"adapters of rank {self.rank or rank} are asked for; expected 1 to {MOST_RANK}")
        slots = max(self.slots, len(self.paths), 1)
        if self.slots < 0 or slots > MOST_ADAPTERS:
            asked = slots if self.slots >= 0 else self.slots
            raise RequestError(f"{asked} places for adapters are asked for; expected 1 to {MOST_ADAPTERS}")
        return Adapters(rank=rank, slots=slots)


NO_ADAPTERS = GivenAdapters()
