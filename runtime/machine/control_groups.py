"""Where Linux says what this process's control groups allow it, in version 1 and version 2."""

from collections.abc import Iterator
from pathlib import Path


def group_folders(root: Path, kind: str, controller: str) -> Iterator[Path]:
    """The folder of this process's group in each hierarchy of a kind, and those of all its parent groups.

    In a container, the mounted root is often the container's own group, and the group's path does not exist below it.
    So the mounted root always comes last.

    Args:
        root: the folder of `proc` and `sys`.
        kind: `cgroup` (version 1) or `cgroup2`.
        controller: `cpu` or `memory` in version 1; empty in version 2, whose groups have all controllers.
    """
    groups: dict[str, str] = {}
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        groups |= {name: path for name in names.split(",")}
    if controller not in groups:
        return
    for line in (text_of(root / "proc/self/mountinfo") or "").splitlines():
        place, _, rest = line.partition(" - ")
        fields, described = place.split(), rest.split()
        if len(fields) < 5 or len(described) < 3 or described[0] != kind:
            continue
        if controller and controller not in described[2].split(","):
            continue
        mounted, top = fields[3].rstrip("/"), root / fields[4].lstrip("/")
        path = groups[controller]
        inside = path.removeprefix(mounted) if path == mounted or path.startswith(f"{mounted}/") else ""
        folder = top / inside.lstrip("/")
        while folder != top and top in folder.parents:
            yield folder
            folder = folder.parent
        yield top


def text_of(path: Path) -> str | None:
    """The text of a small file without the white space around it; None if it cannot be read."""
    try:
        return path.read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
