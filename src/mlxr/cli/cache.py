"""`mlxr cache`: shows what MLXR keeps on disk, and removes it."""

import argparse
import json
import os
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mlxr.compiler.errors import MlxrError
from mlxr.compiler.text import counted, size
from mlxr.runtime.cache_folder import KV_FOLDER, PACKED_FOLDER, cache_root
from mlxr.runtime.hosts.registry import hosts

_ABOUT = (
    "MLXR keeps what it compiled, so that the next run starts at once. All of it can be made again. It is in "
    "MLXR_CACHE_DIR if that is set, else in $XDG_CACHE_HOME/mlxr, else in ~/.cache/mlxr."
)


_OURS = re.compile(r"sha256|.+-[0-9a-f]{16,64}(\.\w+)*|\..+", re.DOTALL)
"""Names of our files: cache entries, which end in a hash; the folder of hashes; and files that are being written."""


@dataclass(frozen=True)
class CachedKind:
    """A kind of cached files: the name of its folder, how many there are, and how many bytes they take."""

    name: str
    about: str
    entries: int
    size_bytes: int


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("cache", help="list or clear what MLXR keeps on disk", description=_ABOUT)
    actions = parser.add_subparsers(metavar="list|clear", required=True)
    listing = actions.add_parser("list", help="show where the cache is, and what is in it", description=_ABOUT)
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=run_list)
    kinds = "; ".join(f"{name} ({about})" for name, about in caches().items())
    clearing = actions.add_parser(
        "clear", help="remove what is in the cache", description=f"Remove what is in the cache. Kinds: {kinds}."
    )
    clearing.add_argument("kind", nargs="*", metavar="KIND", help=f"only these: {', '.join(caches())} (default: all)")
    clearing.add_argument("--json", action="store_true", help="print JSON")
    clearing.set_defaults(run=run_clear)


def caches() -> dict[str, str]:
    """The folders of the cache: the name of each, and what is in it."""
    of_hosts = {host.name: host.cached for host in hosts().values() if host.cached}
    ours = {
        "artifacts": "what specs and model files compile to",
        KV_FOLDER: "KV caches and states of prompts that were read",
        PACKED_FOLDER: "quantised weights as host cpu reads them",
    }
    return ours | dict(sorted(of_hosts.items()))


def run_list(args: argparse.Namespace) -> int:
    """Runs `mlxr cache list`."""
    root = cache_root()
    ours = [_kind(root, name, about) for name, about in caches().items()]
    others = [_kind(root, name, "not of mlxr's commands; never cleared") for name in _other_folders(root)]
    if args.json:
        print(json.dumps({"folder": str(root), "kinds": [asdict(kind) for kind in (*ours, *others)]}, indent=1))
        return 0
    print(f"{root}{'' if root.exists() else ' (does not exist yet)'}")
    for kind in (*ours, *others):
        entries = counted(kind.entries, "entry", "entries")
        print(f"  {kind.name:<12} {size(kind.size_bytes):>10}  {entries:>12}  {kind.about}")
    return 0


def run_clear(args: argparse.Namespace) -> int:
    """Runs `mlxr cache clear`: removes the folders of the kinds, and nothing that lies beside them."""
    unknown = [name for name in args.kind if name not in caches()]
    if unknown:
        raise MlxrError(f"there is no cache {unknown[0]!r}; there are {', '.join(caches())}")
    root = cache_root()
    kinds = [_kind(root, name, about) for name, about in caches().items() if not args.kind or name in args.kind]
    for kind in kinds:
        folder = root / kind.name
        try:
            _clear(folder)
        except OSError as error:
            raise MlxrError(f"cannot remove {error.filename or folder}: {error.strerror or error}") from error
    left = [_kind(root, kind.name, kind.about) for kind in kinds]
    kinds = [
        replace(kind, entries=kind.entries - rest.entries, size_bytes=kind.size_bytes - rest.size_bytes)
        for kind, rest in zip(kinds, left, strict=True)
    ]
    freed = sum(kind.size_bytes for kind in kinds)
    if args.json:
        print(json.dumps({"folder": str(root), "cleared": [asdict(kind) for kind in kinds]}, indent=1))
    else:
        print(f"removed {counted(sum(kind.entries for kind in kinds), 'entry', 'entries')}, {size(freed)}, from {root}")
    return 0


def _clear(folder: Path) -> None:
    """Removes what MLXR wrote into a folder, and the folder if nothing else is in it."""
    if folder.is_symlink():
        raise MlxrError(f"{folder} is a symbolic link; clear what it points to, or remove it, yourself")
    if not folder.is_dir():
        return
    others = []
    for path in folder.iterdir():
        if not _OURS.fullmatch(path.name):
            others.append(path.name)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if others:
        print(f"{folder}: left {', '.join(sorted(others)[:3])}, which MLXR did not write", file=sys.stderr)
    else:
        with suppress(OSError):  # another process may have written meanwhile
            folder.rmdir()


def _kind(root: Path, name: str, about: str) -> CachedKind:
    try:
        entries = [path for path in (root / name).iterdir() if path.name != "sha256"]  # hashes are not entries
    except OSError:
        entries = []
    return CachedKind(name, about, len(entries), _bytes_below(root / name))


def _bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder; files that another process removes meanwhile do not count."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue
    return total


def _other_folders(root: Path) -> list[str]:
    try:
        return sorted(path.name for path in root.iterdir() if path.is_dir() and path.name not in caches())
    except OSError:
        return []
