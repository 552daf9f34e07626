"""What people write for a model on the hub: ORG/REPO, or ORG/REPO:FILE."""

import re
from dataclasses import dataclass
from pathlib import Path

_REFERENCE = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<file>[^:\s]+))?", re.ASCII)
_FILES = (".gguf", ".yaml", ".yml", ".safetensors", ".json")


@dataclass(frozen=True)
class HubReference:
    """A model on the hub.

    Attributes:
        repo: its repository, ORG/REPO.
        file: part of the name of one of its GGUF files; None: nothing was said.
    """

    repo: str
    file: str | None = None

    def __str__(self) -> str:
        return self.repo if self.file is None else f"{self.repo}:{self.file}"


def hub_reference(text: str) -> HubReference | None:
    """The model on the hub that a text means; None for a text that rather is a path."""
    match = _REFERENCE.fullmatch(text)
    if match is None or match["repo"].lower().endswith(_FILES):
        return None
    return HubReference(match["repo"], match["file"])


def is_in_a_folder(text: str) -> bool:
    """Whether the part before the slash is a folder here, so that a path was meant."""
    return Path(text.partition("/")[0]).is_dir()
