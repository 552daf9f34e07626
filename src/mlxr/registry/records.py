"""What the registry holds, as frozen dataclasses: one for each table that callers see; and which names it takes."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.loading.options import NO_OPTIONS, LoadOptions
from mlxr.registry import RegistryError

Kind = Literal["gguf", "folder", "spec", "artifact"]
"""What MODEL a registered path is: a GGUF file, a Hugging Face or mlx-lm folder, a spec file, an artifact folder."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:@/-]*[A-Za-z0-9._-])?", re.ASCII)
_LONGEST = 200


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


def check_name(name: str) -> None:
    """Refuses names that no model may have.

    Raises:
        RegistryError: it has other characters than letters, digits and `. _ : @ - /`, begins with another one than a
            letter or digit, ends with a separator, could be a path out of a folder, is too long, or is a bundled
            model's.
    """
    if name in bundled_specs():
        raise RegistryError(f"{name} is the name of a bundled model; choose another one")
    parts = re.split("[/:]", name)
    if not _NAME.fullmatch(name) or len(name) > _LONGEST or any(part in ("", ".", "..") for part in parts):
        raise RegistryError(
            f"{name!r} cannot be the name of a model; expected letters, digits and . _ : @ - / within, the first one a "
            f"letter or digit, at most {_LONGEST}"
        )


def close_names(name: str, names: Iterable[str]) -> list[str]:
    """Up to three names that someone may have meant, the closest first."""
    known = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    whole = [each for each in known if len(name) >= 3 and name.lower() in each and each not in close]
    return [known[each] for each in (*close, *whole)][:3]
