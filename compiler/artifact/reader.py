"""Reads an artifact from its folder; refuses an artifact of another version, or a changed one.

Anybody may have made the folder: no device and no pipe in it is read, and no file that is too large.
"""

import json
import os
import stat
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from mlxr.compiler.artifact.artifact import Artifact
from mlxr.compiler.artifact.folder_lock import unchanging
from mlxr.compiler.artifact.manifest import (
    CHIP,
    EXPERTS,
    GRAPHS,
    MANIFEST,
    PARALLEL,
    PLAN,
    SPEC,
    digest_of,
    is_artifact,
    rank_folder,
    sha256,
)
from mlxr.compiler.artifact.parallel.check_parallel import check_parallel
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.spec.other_files import other_than_an_artifact
from mlxr.compiler.text import counted
from mlxr.compiler.version import ARTIFACT_FORMAT, VERSION

_MOST_BYTES = 256 << 20
"""A hundred times the size of the largest models' files."""


def load_artifact(path: str | Path) -> Artifact:
    """Reads an artifact and checks its format, version and every hash.

    Raises:
        ArtifactError: it is missing, of another version, or changed since it was written.
    """
    folder = Path(path)
    with unchanging(Path(os.path.realpath(folder)).parent):
        return _load(folder)


def _load(folder: Path) -> Artifact:
    if not is_artifact(folder):
        raise ArtifactError(other_than_an_artifact(folder))
    try:
        manifest = json.loads(_read_regular(folder / MANIFEST))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{folder / MANIFEST} cannot be read ({error}); compile the spec again") from error
    try:
        version, layout, digest = manifest["version"], manifest["format"], manifest["digest"]
        hashes: dict[str, str] = dict(manifest["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{folder / MANIFEST} is not a manifest; compile the spec again") from error
    if (layout, version) != (ARTIFACT_FORMAT, VERSION):
        raise ArtifactError(
            f"{folder} was written by mlxr {version} (format {layout}); this is mlxr {VERSION} (format "
            f"{ARTIFACT_FORMAT}); compile the spec again"
        )
    artifact = Artifact({name: _read(folder, name, expected) for name, expected in hashes.items()})
    if digest_of(hashes) != digest:
        raise ArtifactError(f"{folder / MANIFEST} was changed since it was written; compile the spec again")
    if SPEC not in artifact.files or CHIP not in artifact.files:
        raise ArtifactError(f"{folder} lacks {SPEC if CHIP in artifact.files else CHIP}; compile the spec again")
    try:
        _ = artifact.chip
    except ValidationError as error:
        raise ArtifactError(
            f"{folder / CHIP} does not describe a chip ({counted(error.error_count(), 'error')}); compile the spec "
            "again"
        ) from error
    try:
        split = artifact.parallel
    except ValidationError as error:
        raise ArtifactError(
            f"{folder / PARALLEL} does not describe ranks ({counted(error.error_count(), 'error')}); compile the spec "
            "again"
        ) from error
    if split is None:
        _check_plan(artifact, folder, None)
        if (experts := artifact.experts) is not None:
            _check_plan(experts, folder / EXPERTS, None)
        elif artifact.spec.experts_on_cpu:
            raise ArtifactError(f"{folder} lacks {EXPERTS}{PLAN}; compile the spec again")
    else:
        for rank in range(split.size):
            place = (rank, split.tensor, split.pipeline)
            _check_plan(artifact.of_rank(rank), folder / rank_folder(rank), place)
        check_parallel(artifact, split, folder)
    return artifact


def _check_plan(artifact: Artifact, folder: Path, place: tuple[int, int, int] | None) -> None:
    """Checks that graphs, plan and sources are there, and that the plan is of this rank, tensor and pipeline."""
    missing = [name for name in (PLAN, *(f"graph.{graph}.json" for graph in GRAPHS)) if name not in artifact.files]
    if missing:
        raise ArtifactError(f"{folder} lacks {', '.join(missing)}; compile the spec again")
    try:
        sources = [name for program in artifact.plan.programs.values() for name in program.files]
        absent = [name for name in sources if name not in artifact.files]
    except ValidationError as error:
        raise ArtifactError(
            f"{folder / PLAN} is not a plan ({counted(error.error_count(), 'error')}); compile the spec again"
        ) from error
    if absent:
        raise ArtifactError(f"{folder} lacks {', '.join(absent)}; compile the spec again")
    rank = artifact.plan.rank
    if place != (None if rank is None else (rank.rank, rank.tensor, rank.pipeline)):
        raise ArtifactError(f"{folder / PLAN} is of another part of a model; compile the spec again")


def _read(folder: Path, name: str, expected: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise ArtifactError(f"{folder / MANIFEST} names {name!r}, which is outside the artifact")
    try:
        content = _read_regular(folder / name)
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ArtifactError(f"{folder / name} cannot be read ({reason}); compile the spec again") from error
    if sha256(content) != expected:
        raise ArtifactError(f"{folder / name} was changed since it was written; compile the spec again")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{folder / name} is not text ({error}); compile the spec again") from error


def _read_regular(path: Path) -> bytes:
    """A file's content; links are followed.

    Raises:
        OSError: it cannot be read, is too large, or is no regular file: /dev/zero has no end, and a pipe waits.
        ValueError: no file has such a name.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a regular file")
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(0, f"it has more than {_MOST_BYTES} bytes")
    return content
