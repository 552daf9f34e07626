"""The version: of the package, and so of every artifact it writes.

`VERSION` is the current release, or the next one. `full_version` adds the commit, which it asks git for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "0.1.0"
ARTIFACT_FORMAT = 14


def full_version() -> str:
    """The version of this copy of MLXR, in the form of PEP 440.

    In a clone, git tells: `VERSION` if the commit has the tag `vVERSION`, else `VERSION.devN+gCOMMIT`, where N is the
    number of commits up to it, so that pip takes it for older than the release and for newer than the commit before;
    `+dirty` or `.dirty` where tracked files were changed. A source distribution and an installed package say what they
    were built as. `VERSION+unknown` if nobody knows.

    The build calls this (`pyproject.toml`), with nothing of MLXR or its dependencies at hand.
    """
    from importlib import metadata  # noqa: PLC0415 (these three take longer to import than most commands need)
    from pathlib import Path  # noqa: PLC0415

    file = Path(__file__).resolve()
    clone = file.parent.parent  # whose src/mlxr/compiler is a link to compiler/ at its top
    archive = clone.parent.parent
    if (archive / "src/mlxr").is_dir() and (archive / "PKG-INFO").is_file():
        return metadata.PathDistribution(archive).version
    if (clone / "src/mlxr").is_dir():
        known = _git_version(clone) if (clone / ".git").exists() else None
        return known or f"{VERSION}+unknown"
    try:
        return metadata.version("mlxr")
    except metadata.PackageNotFoundError:
        return f"{VERSION}+unknown"


def _git_version(folder: "Path") -> str | None:
    """The version of a clone; None where git is missing or does not answer."""
    import subprocess  # noqa: PLC0415

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        commit, count = git("rev-parse", "--short=7", "HEAD"), git("rev-list", "--count", "HEAD")
        is_release = f"v{VERSION}" in git("tag", "--points-at", "HEAD").split()
        is_dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None
    local = [*([] if is_release else [f"g{commit}"]), *(["dirty"] if is_dirty else [])]
    return (VERSION if is_release else f"{VERSION}.dev{count}") + ("+" if local else "") + ".".join(local)
