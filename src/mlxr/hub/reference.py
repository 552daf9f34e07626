"""What people write for a model on the hub: ORG/REPO, ORG/REPO:FILE, and both with a revision: ORG/REPO@REVISION."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

_REFERENCE = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>\w[\w./-]*))?(?::(?P<file>[^:\s]+))?", re.ASCII
)
_HUB = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/(?P<path>.+)", re.IGNORECASE)
_VIEWS = {"tree", "blob", "resolve", "raw", "commit", "discussions", "commits"}
"""What stands in the hub's addresses between a repository and a revision."""
_FILES = (".gguf", ".yaml", ".yml", ".safetensors", ".json")


@dataclass(frozen=True)
class HubReference:
    """A model on the hub.

    Attributes:
        repo: its repository, ORG/REPO.
        file: part of the name of one of its GGUF files; None: nothing was said.
        revision: a branch, a tag or a commit; None: the newest commit of the main branch.
    """

    repo: str
    file: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo_at_revision if self.file is None else f"{self.repo_at_revision}:{self.file}"

    @property
    def repo_at_revision(self) -> str:
        """Without the file."""
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def hub_reference(text: str) -> HubReference | None:
    """The model on the hub that a text means; None for a text that rather is a path."""
    match = _REFERENCE.fullmatch(text)
    if match is None or any((match[part] or "").lower().endswith(_FILES) for part in ("repo", "revision")):
        return None
    return HubReference(match["repo"], match["file"], match["revision"])


def without_hub(text: str) -> str:
    """What people write for a model, where they gave an address of the hub's; any other text as it is.

    `hf.co/ORG/REPO:FILE` is ORG/REPO:FILE, and so are the addresses that a browser shows:
    https://huggingface.co/ORG/REPO/tree/REVISION is ORG/REPO@REVISION, and that of a GGUF file names the file, too.
    """
    match = _HUB.fullmatch(text)
    if match is None:
        return text
    org, _, rest = match["path"].partition("?")[0].partition("#")[0].strip("/").partition("/")
    if not rest:
        return text
    repo, *more = rest.split("/")
    view, *place = more or ("",)
    if not place or view not in _VIEWS:
        return f"{org}/{rest}" if view not in _VIEWS else f"{org}/{repo}"
    revision, file = unquote(place[0]), unquote("/".join(place[1:]))
    at = "" if revision == "main" or view in ("discussions", "commits") else f"@{revision}"
    return f"{org}/{repo}{at}:{file}" if file.lower().endswith(".gguf") else f"{org}/{repo}{at}"


def is_in_a_folder(text: str) -> bool:
    """Whether the part before the slash is a folder here, so that a path was meant."""
    return Path(text.partition("/")[0]).is_dir()
