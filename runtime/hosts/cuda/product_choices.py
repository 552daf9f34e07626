"""Which of cuBLASLt's algorithms products take, as an earlier process found by running them, in the cache.

So a model is loaded faster a second time, and its numbers have the same bits.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import mlx.core as mx

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.library_cache import LibraryCache, digest

_cache = LibraryCache("cuda")


class ProductChoices:
    """The places of some products' algorithms among those that the library names, for this card."""

    def __init__(self, version: int, products: Sequence[object]) -> None:
        """Reads nothing yet.

        Args:
            version: of the library, which may name others.
            products: all that decides which algorithms there are.
        """
        info = mx.device_info(mx.Device(mx.gpu))
        self._name = digest("products", str(info.get("device_name", "")), str(version), *map(str, products))
        self._count = len(products)

    def read(self) -> list[int] | None:
        """The places; None: they are not known."""
        with suppress(HostError, ValueError):
            content = _cache.read(self._path())
            found = None if content is None else json.loads(content)
            if isinstance(found, list) and len(found) == self._count and all(isinstance(at, int) for at in found):
                return found
        return None

    def write(self, places: Sequence[int]) -> None:
        """Keeps them. Where the cache cannot be written, the next process finds them again."""
        with suppress(HostError, OSError), _cache.workspace() as work:
            (work / "products").write_text(json.dumps([*places]), "utf-8")
            _cache.publish(work / "products", self._path())

    def _path(self) -> Path:
        return _cache.folder() / f"{self._name}.products"
