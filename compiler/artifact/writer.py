"""Writes the files of an artifact into a folder: all of them or none."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mlxr.compiler.artifact.folder_lock import alone_in, unchanging
from mlxr.compiler.artifact.manifest import MANIFEST, is_artifact
from mlxr.compiler.errors import ArtifactError


def write_files(files: Mapping[str, str], folder: Path, *, whatever_is_there: bool) -> None:
    """Writes the files of an artifact; see `Artifact.write`.

    Args:
        files: relative path to text, the manifest included.
        folder: where to write them.
        whatever_is_there: whether to replace contents that are not an artifact.

    Raises:
        ArtifactError: the folder holds something else, or cannot be written.
    """
    given_path, folder = folder, folder.resolve()
    try:
        if given_path.exists() and not given_path.is_dir() and not whatever_is_there:
            raise ArtifactError(f"{given_path} is not a folder, but an artifact is; name a new or empty folder")
        with unchanging(folder.parent):
            _check_replaceable(folder, whatever_is_there)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True
        ) as work:
            staging, old = Path(work) / "new", Path(work) / "old"
            for path, text in files.items():
                target = staging / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
            with alone_in(folder.parent):
                _check_replaceable(folder, whatever_is_there)
                _move_into_place(staging, folder, old)
    except OSError as error:
        link = f", to which {given_path} links" if given_path.is_symlink() else ""
        raise ArtifactError(f"cannot write {folder}{link}: {error.strerror or error}") from error


def _check_replaceable(folder: Path, whatever_is_there: bool) -> None:
    """Raises ArtifactError unless the folder is new, empty, or holds an artifact and nothing else."""
    if whatever_is_there or not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not is_artifact(folder)):
        raise ArtifactError(f"{folder} exists and is not an artifact; name an empty or a new folder")
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"] if is_artifact(folder) else {}
        known = {MANIFEST, *files}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        known = {MANIFEST}
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    if unknown := sorted(present - known):
        raise ArtifactError(
            f"{folder} holds {unknown[0]!r}, which its artifact does not list; replacing the artifact "
            "would delete it: move it away, or name another folder"
        )


def _move_into_place(staging: Path, folder: Path, old: Path) -> None:
    if not folder.exists():
        staging.rename(folder)
        return
    if folder.is_dir():
        staging.chmod(folder.stat().st_mode & 0o7777)
    folder.rename(old)
    try:
        staging.rename(folder)
    except OSError:
        old.rename(folder)
        raise
