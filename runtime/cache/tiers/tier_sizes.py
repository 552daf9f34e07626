"""How much a model may keep of what its arena has no room for."""

from dataclasses import dataclass
from pathlib import Path

from mlxr.compiler.errors import RequestError
from mlxr.runtime.argument_types import PATH, expect, whole_number


@dataclass(frozen=True)
class TierSizes:
    """Sizes and place of the tiers of the KV cache; nothing is kept by default.

    Raises:
        TypeError: a field of a wrong type.
        RequestError: a negative size.

    Attributes:
        memory_bytes: most bytes of blocks in host memory; 0: none.
        disk_bytes: most bytes of files, of all models that use the folder; 0: none is read or written.
        folder: where the files are; None: in MLXR's cache.
        disk_bytes_per_hour: most bytes that this process writes within an hour, because disks wear out.
    """

    memory_bytes: int = 0
    disk_bytes: int = 0
    folder: str | Path | None = None
    disk_bytes_per_hour: int = 16 << 30

    def __post_init__(self) -> None:
        """Checks every field."""
        for name in ("memory_bytes", "disk_bytes", "disk_bytes_per_hour"):
            if whole_number(name, getattr(self, name)) < 0:
                raise RequestError(f"{name} is {getattr(self, name)}; expected 0 or more bytes")
        expect("folder", self.folder, (*PATH, type(None)), "a folder's path, or None")

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return bool(self.memory_bytes or self.disk_bytes)


NO_TIERS = TierSizes()
