"""What the registry holds, as frozen dataclasses: one for each table that callers see."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mlxr.loading.options import NO_OPTIONS, LoadOptions

Kind = Literal["gguf", "folder", "spec", "artifact"]
"""What MODEL a registered path is: a GGUF file, a Hugging Face or mlx-lm folder, a spec file, an artifact folder."""


@dataclass(frozen=True)
class FileRecord:
    """A file of a model, as it was when the model was added."""

    path: Path
    size_bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True)
class ModelRecord:
    """A registered model.

    Attributes:
        name: its name.
        source: the path that it was added by, absolute.
        kind: what that path is.
        spec_hash: the hash of the spec that it was compiled from.
        options: how it is loaded.
        files: its files; all that loading reads.
        added: when it was added, in seconds since 1970.
        last_used: when it was last loaded, likewise; None: never.
    """

    name: str
    source: Path
    kind: Kind
    spec_hash: str
    options: LoadOptions = NO_OPTIONS
    files: tuple[FileRecord, ...] = field(default=(), repr=False)
    added: float = 0.0
    last_used: float | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class ArtifactRecord:
    """An artifact in the cache that was compiled for a registered model.

    Attributes:
        spec_hash: the hash of its spec.
        chip: the chip that its launch geometry is for; empty: none in particular.
        version: the version of MLXR that compiled it.
        folder: where it is.
        created: when it was registered, in seconds since 1970.
        sequences: sequences that it was compiled for at least, where the spec says less.
    """

    spec_hash: str
    chip: str
    version: str
    folder: Path
    created: float = 0.0
    sequences: int = 1
