"""The spec of a model that was found, and the artifact: read, compiled, or from the cache."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mlxr.compiler.artifact import Artifact, Chip, load_artifact
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.spec.catalog import find_spec
from mlxr.compiler.spec.change import NO_CHANGES, Changes, changed
from mlxr.compiler.spec.load import load_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.artifact_cache import cached_artifact
from mlxr.loading.eagle_head import EagleHead, with_eagle_spec
from mlxr.loading.find_model import FoundModel, find_model
from mlxr.loading.options import LoadOptions
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.hosts.registry import AUTO

Compiled = Callable[[ModelSpec, Path | None], Artifact]
"""Gives the artifact of a spec, with weights of its own or without."""


def chip_of(host: HostEntry) -> Chip | None:
    """The chip that a host runs on, if launch geometry depends on it and it is known."""
    if not (name := host.gpu_name()):
        return None
    from mlxr.compiler.chips.catalog import find_chip_of_device  # noqa: PLC0415 (only where there is a GPU)

    return find_chip_of_device(name)


def here() -> Chip | None:
    """The chip of this machine's GPU, if there is one and it is known."""
    from mlxr.runtime.hosts.select import resolve_host  # noqa: PLC0415 (loads MLX)

    return chip_of(resolve_host(AUTO))


def resolve_artifact(
    name: str, changes: Changes = NO_CHANGES, chip: Chip | None = None
) -> tuple[Artifact, Path | None]:
    """The artifact of MODEL (compiled now or found in the cache), and the weights that belong to it, if any.

    Args:
        name: MODEL.
        changes: changes to its spec.
        chip: the chip whose launch geometry to take where there is no artifact yet; None: none in particular.

    Raises:
        MlxrError: see `find_model` and `artifact_of`.
    """
    found = find_model(name, LoadOptions(changes=changes))
    artifact, own = artifact_of(found, chip)
    return artifact, _weights(found, own)


def artifact_of(
    found: FoundModel,
    chip: Chip | None = None,
    compiled: Compiled | None = None,
    changes: Changes | None = None,
    eagle: EagleHead | None = None,
) -> tuple[Artifact, Path | None]:
    """The artifact of a model, and its own weights, if it has any.

    An artifact that differs from what the changes ask for is compiled again, from its own spec and for its own chip.
    Any other must be what its spec compiles to, unless `changes.trust_artifact` says that it may run as it is.

    Args:
        found: the model.
        chip: as for `resolve_artifact`.
        compiled: gives the artifact of a spec; None: the cache, and the compiler after `check_first`.
        changes: changes to its spec; None: those of its options.
        eagle: the head of other files that guesses for it; None: there is none.

    Raises:
        MlxrError: it cannot be compiled with these changes, or it is an edited artifact.
    """
    changes = found.options.changes if changes is None else changes
    if isinstance(found.model, Artifact):
        return _as_changed(found.model, changes, eagle), None
    if found.kind == "artifact":
        return _of_folder(Path(str(found.model)), changes, eagle), None
    spec, own = spec_of(found, changes)
    spec = with_eagle_spec(spec, eagle)
    if compiled is not None:
        return compiled(spec, own), own
    return cached_artifact(spec, chip, partial(check_first, spec, own, eagle)), own


def check_first(spec: ModelSpec, own: Path | None, eagle: EagleHead | None = None) -> None:
    """What is checked before a spec is compiled that comes with weights of its own; see `check_tensors_first`."""
    if own is not None:
        from mlxr.loading.compare_spec import check_tensors_first  # noqa: PLC0415 (slow to import: not for the cached)

        check_tensors_first(spec, own, None if eagle is None else eagle.file)


def resolve_spec(name: str, changes: Changes = NO_CHANGES) -> tuple[ModelSpec, Path | None]:
    """The spec of MODEL, which is not an artifact, and the weights that belong to it, if any.

    Args:
        name: MODEL.
        changes: changes to its spec.

    Raises:
        MlxrError: there is no such model, or its spec contradicts itself or the changes.
    """
    found = find_model(name, LoadOptions(changes=changes))
    spec, own = spec_of(found)
    return spec, _weights(found, own)


def spec_of(found: FoundModel, changes: Changes | None = None) -> tuple[ModelSpec, Path | None]:
    """The spec of a model that is not an artifact, and its own weights, if it has any.

    Args:
        found: the model.
        changes: changes to its spec; None: those of its options.

    Raises:
        MlxrError: its spec contradicts itself or the changes.
    """
    changes = found.options.changes if changes is None else changes
    if isinstance(found.model, ModelSpec):
        return changed(found.model, changes), None
    if found.kind == "files":
        from mlxr.loading.imported_model import import_model  # noqa: PLC0415 (reads GGUF: only when needed)

        spec, own = import_model(Path(str(found.model)), _import_options(changes))
        return changed(
            spec,
            Changes(
                parallel=changes.parallel,
                keep_windows=changes.keep_windows,
                mtp=changes.mtp,
                adapters=changes.adapters,
                experts_on_cpu=changes.experts_on_cpu,
            ),
        ), own
    path = find_spec(str(found.model))
    spec = load_spec(path)
    bundled = path.parent / f"{spec.name}-q8_0.gguf"
    return changed(spec, changes), bundled if bundled.is_file() else None


def _import_options(changes: Changes) -> ImportOptions:
    return ImportOptions(
        changes.context,
        changes.needed_context,
        changes.sequences,
        changes.compute or "fast",
        changes.activation_dtype,
        changes.cache_dtype,
        changes.accepted_keys,
        changes.force_context,
        changes.cache_memory,
        changes.deterministic,
        changes.output or "logits",
        changes.mtp or False,
    )


def _weights(found: FoundModel, own: Path | None) -> Path | None:
    return own if found.options.weights is None else Path(found.options.weights)


def _of_folder(folder: Path, changes: Changes, eagle: EagleHead | None) -> Artifact:
    artifact = load_artifact(folder)
    result = _as_changed(artifact, changes, eagle)
    if result is artifact and not changes.trust_artifact:
        from mlxr.loading.compiled_from_spec import check_compiled_from_spec  # noqa: PLC0415 (slow to import)

        check_compiled_from_spec(artifact, folder)
    return result


def _as_changed(artifact: Artifact, changes: Changes, eagle: EagleHead | None) -> Artifact:
    spec = with_eagle_spec(changed(artifact.spec, changes), eagle)
    return artifact if spec == artifact.spec else cached_artifact(spec, artifact.chip)
