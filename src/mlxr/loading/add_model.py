"""Adds a model to the registry: checks it, compiles it ahead, and hashes its files."""

import hashlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mlxr.compiler.artifact import Artifact, Chip, file_keys, is_artifact
from mlxr.compiler.artifact.manifest import MANIFEST
from mlxr.compiler.errors import MlxrError, WeightsError
from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.compiler.spec.change import Changes
from mlxr.compiler.spec.load import dump_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.version import VERSION
from mlxr.loading.artifact_cache import cache_entry, cached_artifact
from mlxr.loading.compare_spec import check_spec
from mlxr.loading.imported_model import is_model_file
from mlxr.loading.options import NO_OPTIONS, USUAL_SEQUENCES, LoadOptions, with_sequences
from mlxr.loading.resolve import check_first, chip_of, resolve_artifact, resolve_spec
from mlxr.registry import NameTakenError, RegistryError
from mlxr.registry.file_status import HashProgress, recorded
from mlxr.registry.records import ArtifactRecord, Kind, ModelRecord, check_name
from mlxr.registry.registry import Registry, taken
from mlxr.runtime.engine.model_tokenizer import check_tokenizer
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.hosts.select import resolve_host
from mlxr.runtime.weights.gguf_parts import model_name
from mlxr.runtime.weights.headers_read_once import headers_read_once
from mlxr.runtime.weights.open_weights import open_weights

_LOG = logging.getLogger(__name__)


def add_model(
    source: str | Path,
    name: str | None = None,
    *,
    options: LoadOptions = NO_OPTIONS,
    replaces: bool = False,
    hashes: Mapping[Path, str] | None = None,
    progress: HashProgress | None = None,
) -> ModelRecord:
    """Registers a model, so that its name stands for it wherever MODEL is taken. Its files stay where they are.

    What it compiles to with these options is in the cache afterwards: for one sequence, as `mlxr run` loads it, and for
    as many as an engine computes at once, as `mlxr serve` does; with what the host itself compiles ahead.

    Args:
        source: a .gguf file, a Hugging Face or mlx-lm folder, a spec file or an artifact folder.
        name: its name; None: that of the file or folder.
        options: how it is loaded. A spec or artifact needs weights.
        replaces: whether the name may be taken; that model leaves the registry.
        hashes: SHA-256 of files that the caller knows, by path; the others are read.
        progress: called while files are read.

    Raises:
        RegistryError: the name is taken or cannot be one, the registry cannot be written, or a file cannot be read.
        MlxrError: it is not a model, or cannot be compiled, or the weights are of another one.
    """
    if str(source) in bundled_specs():
        raise RegistryError(f"{source} is a bundled model: its name works without the registry")
    path, registry = _plain(Path(source)), Registry()
    name = _default_name(path) if name is None else name
    check_name(name)
    if not replaces and (other := registry.get(name)) is not None:
        raise NameTakenError(taken(name, other.source))
    options = replace(
        options,
        weights=None if options.weights is None else _plain(Path(options.weights)),
        tokenizer=None if options.tokenizer is None else _plain(Path(options.tokenizer)),
    )
    where, kind, known = resolve_host(options.host), _kind(path), hashes or {}
    with headers_read_once():
        found = _compiled(path, kind, options, where)
    spec, chip, served = found.spec, found.chip, found.served
    text = dump_spec(spec)
    model = ModelRecord(
        name,
        path,
        kind,
        hashlib.sha256(text.encode()).hexdigest(),
        options,
        tuple(recorded(file, progress, known.get(file)) for file in found.files),
        time.time(),
    )
    records = [_in_cache(spec, chip, model.spec_hash, 1)]
    prepare(where, found.artifact)
    if served is not None and served.spec != spec:
        records.append(_in_cache(served.spec, chip, model.spec_hash, USUAL_SEQUENCES))
        prepare(where, served)
    registry.add(model, text, [record for record in records if record is not None], replace=replaces)
    return model


class _Compiled(NamedTuple):
    """A model that was checked and compiled, and the files that loading it reads.

    Attributes:
        spec: its spec, for one sequence.
        artifact: what that compiles to.
        chip: for which it is compiled; None: for none in particular.
        served: what an engine loads; None: it cannot.
    """

    spec: ModelSpec
    artifact: Artifact
    chip: Chip | None
    served: Artifact | None
    files: Sequence[Path]


def _compiled(path: Path, kind: Kind, options: LoadOptions, host: HostEntry) -> _Compiled:
    """Checks a model and compiles it as `load` does for this host."""
    changes, artifact = options.changes, None
    chip: Chip | None
    if kind == "artifact":
        artifact, own = resolve_artifact(os.fspath(path), changes)
        spec, chip = artifact.spec, artifact.chip
    else:
        changes = replace(changes, deterministic=host.deterministic or changes.deterministic)
        spec, own = resolve_spec(os.fspath(path), changes)
        chip = chip_of(host)
    _refuse_ranks(spec)
    weights = own if options.weights is None else Path(options.weights)
    if weights is None:
        raise WeightsError(f"{spec.name} comes without weights: name a file or folder of them (--weights W)")
    check_tokenizer(weights, options.tokenizer, spec.model.vocab_size)
    if artifact is None:
        check_first(spec, own)  # also of what is compiled already: nothing is loaded here
        artifact = cached_artifact(spec, chip)
    if options.weights is not None or kind in ("artifact", "spec"):
        check_spec(spec, weights, options.changes.accepted_keys, options.changes.force_context)
    files = _files(path, kind, weights, None if options.tokenizer is None else Path(options.tokenizer))
    return _Compiled(spec, artifact, chip, _served(path, changes, chip), files)


def _refuse_ranks(spec: ModelSpec) -> None:
    if spec.parallel is not None:
        size = spec.parallel.size
        raise RegistryError(
            f"{spec.name} is split over {size} ranks, and a registered model runs on one machine: start it by its path "
            f"with mlx.launch -n {size} -- mlxr run ARTIFACT --weights W, or leave parallel out of the spec"
        )


def prepare(host: HostEntry, artifact: Artifact) -> None:
    """Has a host compile ahead what it needs; where it cannot, the model's first run says so again."""
    try:
        if host.runs(artifact.plan.targets):
            host.prepare(artifact)
    except MlxrError as error:
        _LOG.warning("note: not compiled ahead: %s", error)


def _served(path: Path, changes: Changes, chip: Chip | None) -> Artifact | None:
    """The artifact that an engine loads where nobody sets the number of sequences; None, and a note: there is none."""
    try:
        return resolve_artifact(os.fspath(path), with_sequences(changes, USUAL_SEQUENCES), chip)[0]
    except MlxrError as error:
        _LOG.warning(
            "note: not compiled for mlxr serve, which needs --max-sequences less than %s: %s", USUAL_SEQUENCES, error
        )
        return None


def _default_name(path: Path) -> str:
    name = path.name if path.is_dir() else model_name(path)
    try:
        check_name(name)
    except RegistryError as error:
        raise RegistryError(f"{error}. Give it one with --name") from error
    return name


def _kind(path: Path) -> Kind:
    if is_artifact(path):
        return "artifact"
    if is_model_file(path):
        return "folder" if path.is_dir() else "gguf"
    return "artifact" if path.is_dir() else "spec"  # a folder that is neither: reading it says what it is


def _files(path: Path, kind: Kind, weights: Path, tokenizer: Path | None) -> list[Path]:
    """The files that loading reads."""
    file = open_weights(weights)
    paths = [file.path, *dict.fromkeys(tensor.file for tensor in file.tensors.values())]
    if kind in ("artifact", "spec"):
        paths.insert(0, path / MANIFEST if kind == "artifact" else path)  # the manifest has the hashes of the others
    if file.format == "safetensors":
        paths += _describing(file.path.parent)
    if tokenizer is not None:
        paths += _describing(tokenizer) if tokenizer.is_dir() else [tokenizer]
    return list(dict.fromkeys(map(_plain, paths)))


def _plain(path: Path) -> Path:
    """A path as people would write it: absolute and without `..`, but with the symbolic links that they chose."""
    plain = Path(os.path.abspath(path))  # noqa: PTH100 (resolve() would follow links)
    try:
        return plain if plain.samefile(path) else path.absolute()  # of a link's folder, `..` is another one
    except OSError:
        return path.absolute()


def _describing(folder: Path) -> list[Path]:
    return [folder / name for name in file_keys.DESCRIBING_FILES if (folder / name).is_file()]


def _in_cache(spec: ModelSpec, chip: Chip | None, spec_hash: str, sequences: int) -> ArtifactRecord | None:
    """The record of what a spec compiles to, if it is in the cache."""
    try:
        folder = cache_entry(spec, chip)
    except MlxrError:
        return None
    if not is_artifact(folder):
        return None
    return ArtifactRecord(spec_hash, chip.name if chip else "", VERSION, folder, sequences=sequences)
