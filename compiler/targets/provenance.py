"""The origin that the head of each source states, and artifacts that differ in their model's name alone."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from mlxr.compiler.artifact.manifest import SPEC
from mlxr.compiler.spec.load import dump_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.version import VERSION


@dataclass(frozen=True)
class Provenance:
    """The origin that the head of a source states: no time, host or path."""

    version: str
    spec_name: str
    spec_hash: str

    @classmethod
    def of(cls, spec: ModelSpec, text: str | None = None) -> Self:
        """The origin of what is compiled from a spec; `text` is what `dump_spec` made of it, if the caller has it."""
        text = dump_spec(spec) if text is None else text
        return cls(VERSION, spec.name, hashlib.sha256(text.encode()).hexdigest()[:12])


def renamed(files: Mapping[str, str], old: ModelSpec, new: ModelSpec) -> dict[str, str]:
    """The files of an artifact under another name: what `new` compiles to, where only its name differs from `old`.

    Nothing but the spec and the line of sources that states it depends on the name.

    Args:
        files: of the artifact, by their paths.
        old: the spec that they were compiled from.
        new: the other spec.
    """
    before, after = (f" spec {origin.spec_name} ({origin.spec_hash})\n" for origin in map(Provenance.of, (old, new)))
    return {**{path: text.replace(before, after, 1) for path, text in files.items()}, SPEC: dump_spec(new)}
