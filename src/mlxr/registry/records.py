"""What the registry holds, as frozen dataclasses: one for each table that callers see."""

import dataclasses
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mlxr.compiler.spec.change import NO_CHANGES, Changes
from mlxr.runtime.hosts.registry import AUTO

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
class LoadOptions:
    """How a registered model is loaded, where the caller does not say otherwise.

    Attributes:
        weights: a weight file or folder that the model itself does not come with.
        tokenizer: a tokenizer's file or folder that is not in or beside the weights.
        host: the host to run on; None: this machine's best.
        threads: how many threads host cpu runs; None: one for each core.
        changes: changes to its spec; of `needed_context` and `sequences` only the caller knows.
        template: a chat template to use instead of the model's own: its text.
    """

    weights: Path | None = None
    tokenizer: Path | None = None
    host: str | None = None
    threads: int | None = None
    changes: Changes = NO_CHANGES
    template: str | None = None

    def place(self, host: str, threads: int | None) -> tuple[str, int | None]:
        """The host and its threads, where a caller gives these; what it leaves open is as it was registered."""
        if host != AUTO:
            return host, threads
        return self.host or AUTO, self.threads if threads is None else threads


NO_OPTIONS = LoadOptions()


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


def merged(registered: Changes, given: Changes) -> Changes:
    """The changes that a caller gives, and those of the registry where the caller leaves a field at its default."""
    mine = {name: value for name, value in changes_as_dict(registered).items() if name != "accepted_keys"}
    unset = {name: value for name, value in mine.items() if getattr(given, name) == getattr(NO_CHANGES, name)}
    keys = tuple(dict.fromkeys((*registered.accepted_keys, *given.accepted_keys)))
    return replace(given, **unset, accepted_keys=keys)


def changes_as_dict(changes: Changes) -> dict[str, Any]:
    """The fields of changes that are not at their defaults; without what only a caller knows."""
    fields = (entry.name for entry in dataclasses.fields(Changes) if entry.name not in ("needed_context", "sequences"))
    values = {name: getattr(changes, name) for name in fields}
    return {name: value for name, value in values.items() if value != getattr(NO_CHANGES, name)}
