"""The page's files, read once.

All but the page itself are served under a folder that is named by a hash of all of them. So browsers may keep them for
good, and a page never mixes files of two versions: modules that it imports are beside it, under the same hash.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".LICENSE": "text/plain; charset=utf-8",
}
"""The types that are served, by suffix; other files are for people who read the sources."""
INDEX = "index.html"
_FOLDER = "{{ folder }}"


@dataclass(frozen=True)
class PageFile:
    """One file as it is sent."""

    body: bytes
    media_type: str


@dataclass(frozen=True)
class PageFiles:
    """All files of the page.

    Attributes:
        digest: of them all.
        index: the page, whose links name the digest.
        files: the others, by their paths below the folder of the digest.
    """

    digest: str
    index: PageFile
    files: Mapping[str, PageFile]


@functools.cache
def page_files() -> PageFiles:
    """The files that the package has."""
    files = dict(sorted(_read(resources.files("mlxr.server.page").joinpath("static"), "")))
    digest = hashlib.sha256()
    for path, file in files.items():
        digest.update(b"%d %s %d " % (len(path), path.encode(), len(file.body)) + file.body)
    name = digest.hexdigest()[:16]
    index = files.pop(INDEX)
    body = index.body.replace(_FOLDER.encode(), f"/page/{name}".encode())
    return PageFiles(name, PageFile(body, index.media_type), files)


def _read(folder: Traversable, path: str) -> list[tuple[str, PageFile]]:
    read = []
    for entry in folder.iterdir():
        if entry.is_dir():
            read += _read(entry, f"{path}{entry.name}/")
        elif (media_type := TYPES.get("." + entry.name.rpartition(".")[2])) is not None:
            read.append((path + entry.name, PageFile(entry.read_bytes(), media_type)))
    return read
