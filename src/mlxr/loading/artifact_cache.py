"""Artifacts that were compiled once, in the cache: found by all that decides what a spec compiles to."""

import contextlib
import functools
import hashlib
import logging
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from mlxr.compiler.artifact import Artifact, Chip, is_artifact, load_artifact
from mlxr.compiler.artifact.folder_lock import alone_in
from mlxr.compiler.artifact.manifest import SPEC
from mlxr.compiler.errors import MlxrError
from mlxr.compiler.spec.load import dump_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.early import Early
from mlxr.compiler.targets.provenance import renamed
from mlxr.compiler.version import VERSION
from mlxr.runtime.cache_folder import cache_folder

_LOG = logging.getLogger(__name__)

FOLDER = "artifacts"
"""The folder of artifacts in the cache."""


def cache_entry(spec: ModelSpec, chip: Chip | None = None) -> Path:
    """The folder in the cache for what a spec compiles to, with launch geometry for a chip or for none in particular.

    Raises:
        MlxrError: there is no place for a cache.
    """
    # All but the name, on which nothing of importance depends; see `renamed`.
    text, geometry = spec.model_dump_json(exclude={"name"}), chip.model_dump_json() if chip else ""
    key = hashlib.sha256(f"{_compiler_digest()}\n{text}\n{geometry}".encode()).hexdigest()[:16]
    return cache_folder(FOLDER) / f"{spec.name}-{key}"


def cached_artifact(
    spec: ModelSpec,
    chip: Chip | None = None,
    check: Callable[[], object] = lambda: None,
    early: Early | None = None,
) -> Artifact:
    """The artifact from the cache, or compiled and cached. A cache that cannot be used costs a note and no more.

    Where the cache has what a spec of another name and otherwise the same compiles to, that is taken, under this name:
    nothing is compiled then, and so nothing checked that a host checks when it loads the weights.

    Args:
        spec: the spec.
        chip: the chip to choose launch geometry for; None: none in particular.
        check: is called before anything is compiled, and may refuse that.
        early: who gets a target's sources while the rest is still being compiled; see `compile_spec`.

    Raises:
        MlxrError: the spec cannot be compiled, or `check` raised it.
    """
    try:
        return load_artifact(cache_entry(spec, chip))
    except (MlxrError, OSError):
        artifact = _of_another_name(spec, chip)
        if artifact is None:
            check()
            artifact = _compiled(spec, chip, early)
    try:
        artifact.write(cache_entry(spec, chip), whatever_is_there=True)
    except (MlxrError, OSError) as error:
        _LOG.warning("note: not cached: %s", error)
    return artifact


def _compiled(spec: ModelSpec, chip: Chip | None, early: Early | None) -> Artifact:
    from mlxr.compiler.driver import compile_spec  # noqa: PLC0415 (slow to import: not for what is cached)

    return compile_spec(spec, chip=chip, early=early).artifact


def _of_another_name(spec: ModelSpec, chip: Chip | None) -> Artifact | None:
    """What the spec compiles to, from an entry of the cache that was compiled under another name."""
    try:
        own = cache_entry(spec, chip)
        key = own.name.removeprefix(f"{spec.name}-")
        for folder in sorted(own.parent.glob(f"*-{key}")):
            old = spec.model_copy(update={"name": folder.name.removesuffix(f"-{key}")})
            with contextlib.suppress(MlxrError):
                files = load_artifact(folder).files
                if folder != own and files[SPEC] == dump_spec(old):
                    return Artifact(renamed(files, old, spec))
    except (MlxrError, OSError):
        pass  # the cache cannot be used, which is told when the artifact is written
    return None


def discard(folder: Path) -> bool:
    """Removes an artifact from the cache; a folder that is not one is left alone. Returns whether it was removed."""
    if folder.parent != cache_folder(FOLDER) or folder.is_symlink() or not is_artifact(folder):
        return False
    with alone_in(folder):
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@functools.cache
def _compiler_digest() -> str:
    """A hash of everything that decides what a spec compiles to, so that a changed template is never served stale.

    Of the files as they are when a process first asks: modules that it has imported do not change afterwards either.
    """
    digest = hashlib.sha256(VERSION.encode())
    for package, pattern in (
        ("mlxr.compiler", "*.py"),
        ("mlxr.compiler", "chips/*.yaml"),
        ("mlxr.templates", "*.jinja"),
        ("mlxr.templates", "*.h"),
        ("mlxr.templates", "*.cuh"),
        ("mlxr.models", "families/*"),
    ):
        folder = Path(str(resources.files(package)))
        for path in sorted(folder.rglob(pattern)):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
