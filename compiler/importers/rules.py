"""The rules for one kind of file: data in `models/importers/KIND.yaml` and in the families."""

import re
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

from mlxr.compiler.spec.document import read_document
from mlxr.compiler.spec.explain import validated
from mlxr.compiler.spec.family import family_text, known_families, load_family
from mlxr.compiler.spec.import_rules import ImportRules

Kind = Literal["gguf", "config"]
_MAX_NAME = 64


class Architecture(NamedTuple):
    """A family, under a name that files give it."""

    name: str
    family: str
    rules: ImportRules
    """The family's rules over those that hold for all files of the kind."""


@lru_cache
def load_rules(kind: Kind) -> ImportRules:
    """The rules that hold for every file of one kind."""
    path = Path(str(resources.files("mlxr.models"))) / "importers" / f"{kind}.yaml"
    return validated(ImportRules, read_document(path.read_text(encoding="utf-8"), str(path), is_ours=True))


@lru_cache
def architectures(kind: Kind) -> tuple[Architecture, ...]:
    """Every architecture that files of one kind may name. Of equal names, those that require a key come first."""
    return _of_families(kind, known_families())


@lru_cache
def architectures_named(kind: Kind, name: str) -> tuple[Architecture, ...]:
    """The architectures of one name, in that order. Reads only families whose text has the name, to save time."""
    named = re.compile(rf"names: \[[^\]]*\b{re.escape(name[:_MAX_NAME])}")
    families = tuple(family for family in known_families() if named.search(family_text(family)))
    return tuple(architecture for architecture in _of_families(kind, families) if architecture.name == name)


@lru_cache
def architectures_in(wrapper: str) -> tuple[Architecture, ...]:
    """The architectures of config.json that may be the text model of a whole with this `model_type`."""
    named = re.compile(rf"wrappers: \[[^\]]*\b{re.escape(wrapper[:_MAX_NAME])}")
    families = tuple(family for family in known_families() if named.search(family_text(family)))
    return tuple(one for one in _of_families("config", families) if wrapper in one.rules.wrappers)


def _of_families(kind: Kind, families: tuple[str, ...]) -> tuple[Architecture, ...]:
    architectures = []
    for name in families:
        family = load_family(name)
        own = family.config if kind == "config" else family.gguf
        rules = own.over(load_rules(kind))
        architectures += [Architecture(called, name, rules) for called in own.names]
    return tuple(sorted(architectures, key=lambda entry: (entry.name, not _is_narrow(entry.rules))))


def _is_narrow(rules: ImportRules) -> bool:
    """Whether the family has some of the files with its name."""
    return rules.only_with is not None or bool(rules.only_where)
