"""The adapters that a model has loaded: which name is in which slot, and what each request uses.

An adapter is read by any thread, and put into its slot by the one that runs the steps. A slot is free when no name has
it and no request that runs or waits uses it: so an adapter that is unloaded stays until its last answer has ended.
"""

import re
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from mlxr.compiler.artifact import Adapters, Artifact, WeightPlan
from mlxr.compiler.errors import RequestError
from mlxr.runtime.adapters.adapter_matrices import AdapterMatrices, adapted_parts, adapter_matrices
from mlxr.runtime.adapters.open_adapter import open_adapter
from mlxr.runtime.hosts.host import Host

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_MOST_SCALE = 1e4


@dataclass(frozen=True, eq=False)
class LoadedAdapter:
    """An adapter in a slot.

    Attributes:
        name: by which requests ask for it.
        path: where it was read.
        slot: its place.
        rank: of its file.
        scale: by what it is multiplied, where a request says nothing else.
        digest: of its numbers.
    """

    name: str
    path: Path
    slot: int
    rank: int
    scale: float
    digest: str


@dataclass(frozen=True)
class AdapterUse:
    """What a request uses: an adapter, and by what it is multiplied."""

    adapter: LoadedAdapter
    scale: float

    @property
    def place(self) -> tuple[int, float]:
        """Slot and scale, as a batch has them."""
        return self.adapter.slot, self.scale

    @property
    def identity(self) -> str:
        """What makes keys and values of it differ from those of others."""
        return f"{self.adapter.digest}*{self.scale!r}"


class AdapterSet:
    """The adapters of one model.

    Any thread may call `read`, `use` and `listed`; `put` and `drop` are for that of the core.
    """

    def __init__(self, places: Adapters, weights: tuple[WeightPlan, ...], host: Host) -> None:
        """Starts without adapters.

        Args:
            places: how many there may be, and of which rank.
            weights: of the model's plan.
            host: has the slots.
        """
        self.places = places
        self._adapted, self._host = adapted_parts(weights), host
        self._loaded: dict[str, LoadedAdapter] = {}
        self._by_slot: list[LoadedAdapter | None] = [None] * places.slots
        self._lock = threading.Lock()

    @property
    def listed(self) -> tuple[LoadedAdapter, ...]:
        """Those that requests may ask for, in the order in which they were loaded."""
        with self._lock:
            return tuple(self._loaded.values())

    def read(self, path: str | Path) -> tuple[AdapterMatrices, int]:
        """An adapter's matrices, and its rank.

        Raises:
            WeightsError: it cannot be read, or is for another model; see `adapter_matrices`.
        """
        opened = open_adapter(path)
        return adapter_matrices(opened, self._adapted, self.places), opened.rank

    def put(
        self,
        name: str,
        path: str | Path,
        read: tuple[AdapterMatrices, int],
        scale: float,
        used: Collection[LoadedAdapter],
    ) -> LoadedAdapter:
        """Puts an adapter into a free slot. One of that name that is there already is unloaded.

        Args:
            name: by which requests ask for it.
            path: where it was read.
            read: by `read`.
            scale: by what it is multiplied.
            used: those that requests use.

        Raises:
            RequestError: there is no free slot, or the name cannot be one.
            HostError: the host has no adapters.
        """
        check_name(name)
        check_scale(scale)
        with self._lock:
            taken = {a.slot for a in self._loaded.values() if a.name != name} | {a.slot for a in used}
            slot = next((slot for slot in range(self.places.slots) if slot not in taken), None)
            if slot is None:
                raise RequestError(
                    f"all {self.places.slots} places for adapters are in use ({', '.join(self._loaded)}): unload one, "
                    "or load the model with more (--adapter-slots N)"
                )
            matrices, rank = read
            self._host.write_adapter(slot, matrices.matrices)
            adapter = LoadedAdapter(name, Path(path), slot, rank, scale, matrices.digest)
            self._by_slot[slot] = self._loaded[name] = adapter
            return adapter

    def drop(self, name: str) -> None:
        """Unloads an adapter; requests that use it go on.

        Raises:
            RequestError: there is none of that name.
        """
        with self._lock:
            if name not in self._loaded:
                raise RequestError(self._unknown(name))
            del self._loaded[name]

    def use(self, name: str, scale: float | None = None) -> AdapterUse:
        """What a request uses that asks for an adapter.

        Args:
            name: its name.
            scale: by what it is multiplied; None: what it was loaded with.

        Raises:
            RequestError: there is none of that name, or the scale is no number.
        """
        with self._lock:
            adapter = self._loaded.get(name)
            if adapter is None:
                raise RequestError(self._unknown(name))
        return AdapterUse(adapter, adapter.scale if scale is None else check_scale(scale))

    def is_there(self, use: AdapterUse) -> bool:
        """Whether its slot still has that adapter."""
        return self._by_slot[use.adapter.slot] is use.adapter

    def _unknown(self, name: str) -> str:
        known = ", ".join(self._loaded) or "none"
        return f"there is no adapter {name!r}; loaded are: {known}"


def adapters_of(artifact: Artifact, host: Host) -> AdapterSet | None:
    """Those of a model that has just been loaded; None: it has no places for any."""
    places = artifact.spec.adapters
    return None if places is None else AdapterSet(places, artifact.plan.weights, host)


def check_name(name: str) -> str:
    """The name of an adapter, if it can be one; raises RequestError if not."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(f"an adapter's name is {name!r}; expected letters, digits, dots, underscores, - and /")
    return name


def check_scale(scale: float) -> float:
    """The scale of an adapter, if it can be one; raises RequestError if not."""
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= _MOST_SCALE:
        raise RequestError(f"an adapter's scale is {scale!r}; expected a number up to {_MOST_SCALE:g}")
    return float(scale)
