"""The models of the registry, for a server that was not told which to serve."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlxr.registry.registry import Registry
from mlxr.server.pool.model_source import ModelSource

_FRESH_SECONDS = 0.5


@dataclass
class RegistryCatalog:
    """See `Catalog`: what is registered while the server runs is served, too.

    Attributes:
        options: of every model: a source of any name.
        registry: where the names are.
        only: names of which others are not served; None: all are served.
    """

    options: ModelSource
    registry: Registry = field(default_factory=Registry)
    only: set[str] | None = None
    _versions: Mapping[str, object] = field(default_factory=dict)
    _read: float = float("-inf")

    def versions(self) -> Mapping[str, object]:
        """See `Catalog`; the file is read twice a second at most.

        Raises:
            RegistryError: the registry cannot be read.
        """
        if time.monotonic() - self._read > _FRESH_SECONDS:
            models = self.registry.models()
            self._versions = {
                model.name: (model.source, model.spec_hash, model.added)
                for model in models
                if self.only is None or model.name in self.only
            }
            self._read = time.monotonic()
        return self._versions

    def admit(self, name: str) -> None:
        """See `Catalog`."""
        if self.only is not None:
            self.only.add(name)
        self._read = float("-inf")

    def source(self, name: str) -> ModelSource:
        """See `Catalog`."""
        return replace(self.options, name=name, model=name)
