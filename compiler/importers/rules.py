"""What an importer knows of one kind of file besides the keys it reads: data in `models/importers/KIND.yaml`."""

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from mlxr.compiler.spec.document import read_document
from mlxr.compiler.spec.explain import validated
from mlxr.compiler.spec.fields import Frozen

Kind = Literal["gguf", "config"]


class Rules(Frozen):
    """The rules of one kind of file."""

    architectures: dict[str, str]
    """What the file calls the architecture, to a weight-name map of `models/families`."""
    harmless: tuple[str, ...]
    """Regular expressions for whole keys that change nothing."""
    neutral: dict[str, tuple[Any, ...]]
    """Keys with the values that change nothing."""
    widened: tuple[str, ...]
    """Tensor types that are read, but held as a wider float type."""


@lru_cache
def load_rules(kind: Kind) -> Rules:
    """The rules of one kind of file."""
    path = Path(str(resources.files("mlxr.models"))) / "importers" / f"{kind}.yaml"
    return validated(Rules, read_document(path.read_text(encoding="utf-8"), str(path)))
