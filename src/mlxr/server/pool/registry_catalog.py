"""The models of the registry, for a server that was not told which to serve."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mlxr.registry.registry import Registry
from mlxr.server.pool.engine_source import EngineSource
from mlxr.server.pool.served_model import ModelSource

_FRESH_SECONDS = 0.5


@dataclass
class RegistryCatalog:
    """See `Catalog`: what is registered while the server runs is served, too.

    Attributes:
        options: of every model: a source of any name.
        registry: where the names are.
    """

    options: EngineSource
    registry: Registry = field(default_factory=Registry)
    _names: Sequence[str] = ()
    _read: float = float("-inf")

    def names(self) -> Sequence[str]:
        """See `Catalog`; the file is read twice a second at most.

        Raises:
            RegistryError: the registry cannot be read.
        """
        if time.monotonic() - self._read > _FRESH_SECONDS:
            self._names, self._read = self.registry.names(), time.monotonic()
        return self._names

    def source(self, name: str) -> ModelSource:
        """See `Catalog`."""
        return replace(self.options, name=name, model=name)
