"""What an importer knows of one kind of file: data in `models/importers/KIND.yaml` and in the families."""

import re
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

from mlxr.compiler.spec.document import read_document
from mlxr.compiler.spec.explain import validated
from mlxr.compiler.spec.mapping import Mapped
from mlxr.compiler.spec.names import family_text, known_families, load_tensor_names

Kind = Literal["gguf", "config"]
_MAX_NAME = 64


class Architecture(NamedTuple):
    """A family under the name that files give it."""

    name: str
    family: str
    rules: Mapped
    """The family's over those of all files of the kind."""


@lru_cache
def load_rules(kind: Kind) -> Mapped:
    """What holds for every file of one kind."""
    path = Path(str(resources.files("mlxr.models"))) / "importers" / f"{kind}.yaml"
    return validated(Mapped, read_document(path.read_text(encoding="utf-8"), str(path)))


@lru_cache
def architectures(kind: Kind) -> tuple[Architecture, ...]:
    """Every architecture that files of one kind may name; of equal names, those that ask for a key come first."""
    return _of_families(kind, known_families())


@lru_cache
def architectures_named(kind: Kind, name: str) -> tuple[Architecture, ...]:
    """Those of one name, likewise. Only families whose text has the name are read: reading all takes a moment."""
    named = re.compile(rf"names: \[[^\]]*\b{re.escape(name[:_MAX_NAME])}")
    found = _of_families(kind, tuple(family for family in known_families() if named.search(family_text(family))))
    return tuple(one for one in found if one.name == name)


def _of_families(kind: Kind, families: tuple[str, ...]) -> tuple[Architecture, ...]:
    found = []
    for family in families:
        mapped: Mapped = getattr(load_tensor_names(family), kind)
        rules = mapped.over(load_rules(kind))
        found += [Architecture(name, family, rules) for name in mapped.names]
    return tuple(sorted(found, key=lambda one: (one.name, one.rules.only_with is None)))
