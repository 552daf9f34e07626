"""What is known of a model without loading or compiling it: its size, a digest of its files, and what it is."""

import functools
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from gguf import LlamaFileType

from mlxr.compiler.artifact import file_keys, is_artifact, load_artifact
from mlxr.compiler.build.build_graph import build_graph
from mlxr.compiler.chips.catalog import GENERIC, find_chip
from mlxr.compiler.errors import MlxrError, WeightsError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr.compiler.spec.change import NO_CHANGES, Changes
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.compare_spec import check_spec, check_tensors_first
from mlxr.loading.find_model import FoundModel, find_model
from mlxr.loading.options import NO_OPTIONS, LoadOptions
from mlxr.loading.resolve import spec_of
from mlxr.registry.file_status import status_of
from mlxr.registry.records import ModelRecord
from mlxr.runtime.engine.default_sampling import DefaultSampling, default_sampling
from mlxr.runtime.engine.model_tokenizer import read_tokenizer
from mlxr.runtime.tokenizer import infill
from mlxr.runtime.tokenizer.find_chat_template import ReadMetadata, find_chat_templates
from mlxr.runtime.tokenizer.template_files import DEFAULT, NamedTemplates
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.weight_file import WeightFile

_SAMPLES, _SAMPLE_BYTES = 64, 1 << 14


@dataclass(frozen=True)
class ModelFacts:
    """What a model is.

    Attributes:
        size_bytes: bytes of its files.
        digest: SHA-256 in hexadecimal. Of a registered model's one file, or of the list of its files' hashes; of other
            models, of samples of their files, so it is another one there.
        format: of the weights: `gguf` or `safetensors`.
        family: the name of its tensors' naming, such as `llama`.
        num_parameters: elements of all weights.
        quantization: the format of most weights, such as `Q4_K_M` or `BF16`.
        context: most tokens of a sequence.
        num_layers, vocab_size: as they say.
        is_encoder: whether it makes vectors of texts and writes none.
        templates: the chat templates that it comes with; None: none.
        sampling: how its own files say that tokens are chosen.
    """

    size_bytes: int
    digest: str
    format: str
    family: str
    num_parameters: int
    quantization: str
    context: int
    num_layers: int
    vocab_size: int
    is_encoder: bool
    templates: NamedTemplates | None = field(repr=False)
    sampling: DefaultSampling = field(default_factory=DefaultSampling)


@dataclass(frozen=True)
class _Known:
    """Facts, where the weights and the tokenizer are, and the state of the files that were read."""

    facts: ModelFacts
    weights: Path
    tokenizer: str | Path | None
    version: object
    stats: dict[Path, tuple[int, int]]


_KNOWN: dict[tuple[str, Changes, str | Path | None], _Known] = {}


def model_facts(
    model: "str | os.PathLike[str]", changes: Changes = NO_CHANGES, weights: str | Path | None = None
) -> ModelFacts:
    """The facts of MODEL. They are read once, as long as its files do not change.

    Args:
        model: what `mlxr.load` takes.
        changes: changes to its spec.
        weights: a file or folder of them; None: the model's own.

    Raises:
        MlxrError: it cannot be found, or is not supported, or the weights are of another model.
    """
    return _known(model, changes, weights).facts


def fills_gaps(
    model: "str | os.PathLike[str]",
    changes: Changes = NO_CHANGES,
    weights: str | Path | None = None,
    tokenizer: str | Path | None = None,
) -> bool:
    """Whether MODEL's vocabulary has control tokens for text between two others. It is read once.

    Args:
        model: what `mlxr.load` takes.
        changes: changes to its spec.
        weights: a file or folder of them; None: the model's own.
        tokenizer: a file or folder; None: the model's own.

    Raises:
        MlxrError: as `model_facts`.
    """
    known = _known(model, changes, weights)
    return _fills_gaps(known.weights, tokenizer or known.tokenizer, known.facts.vocab_size, known.facts.digest)


@functools.lru_cache(maxsize=256)
def _fills_gaps(weights: Path, tokenizer: str | Path | None, vocab_size: int, digest: str) -> bool:
    found = read_tokenizer(weights, tokenizer, vocab_size, required=False).tokenizer
    return found is not None and infill.fills_gaps(found)


def _known(model: "str | os.PathLike[str]", changes: Changes, weights: str | Path | None) -> _Known:
    name, options = os.fspath(model), LoadOptions(weights, changes=changes)
    found = find_model(name, options)
    registered = found.registered
    version = None if registered is None else (registered.source, registered.spec_hash, registered.added)
    known = _KNOWN.get((name, changes, weights))
    if known is None or known.version != version or known.stats != _stats(known.stats):
        known = _KNOWN[name, changes, weights] = _read(found, version, weights is not None)
    return known


def _read(found: FoundModel, version: object, are_given: bool) -> _Known:
    registered = found.registered
    spec, own = _spec_and_weights(found)
    weights = own if found.options.weights is None else Path(found.options.weights)
    if weights is None:
        raise WeightsError(f"{spec.name} comes without weights: name a file or folder of them (--weights W)")
    if are_given:
        changes = found.options.changes
        check_spec(spec, weights, changes.accepted_keys, changes.force_context)
        check_tensors_first(spec, weights)
    file, folder = open_weights(weights), weights if weights.is_dir() else weights.parent
    paths = sorted({tensor.file for tensor in file.tensors.values()})
    if not are_given and registered is not None and registered.files and status_of(registered.files).state == "ok":
        paths = sorted(record.path for record in registered.files)
        stats = _stats(paths)
        hashes = {record.path: record.sha256 for record in registered.files}
    else:
        stats = _stats(paths)
        hashes = {path: _sampled(path, size) for path, (size, _) in stats.items()}
    facts = ModelFacts(
        sum(size for size, _ in stats.values()),
        _digest([(path.name, hashes[path]) for path in paths]),
        file.format,
        spec.model.tensor_names,
        _num_parameters(spec),
        _quantization(file, spec),
        spec.model.context,
        spec.model.num_layers,
        spec.model.vocab_size,
        spec.model.is_encoder,
        _templates(file, weights, registered),
        default_sampling(file, spec.model.vocab_size, _tokenizer_of(registered)),
    )
    return _Known(
        facts,
        weights,
        _tokenizer_of(registered),
        version,
        stats | _stats(folder / name for name in file_keys.DESCRIBING_FILES),
    )


def _spec_and_weights(found: FoundModel) -> tuple[ModelSpec, Path | None]:
    path = Path(str(found.model))
    return (load_artifact(path).spec, None) if is_artifact(path) else spec_of(found)


def _tokenizer_of(registered: ModelRecord | None) -> str | Path | None:
    return None if registered is None else registered.options.tokenizer


def _stats(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Each file's size and time of change; (0, 0) of one that is not there."""
    stats = {}
    for path in paths:
        try:
            stat = path.stat()
            stats[path] = stat.st_size, stat.st_mtime_ns
        except OSError:
            stats[path] = 0, 0
    return stats


def _sampled(path: Path, size: int) -> str:
    """A hash of a file's size and of samples of it, from its first byte to its last. Reads 1 MiB at most."""
    digest = hashlib.sha256(str(size).encode())
    last = max(0, size - _SAMPLE_BYTES)
    try:
        with path.open("rb") as stream:
            for offset in sorted({last * i // (_SAMPLES - 1) for i in range(_SAMPLES)}):
                stream.seek(offset)
                digest.update(stream.read(_SAMPLE_BYTES))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def _digest(hashes: list[tuple[str, str]]) -> str:
    if len(hashes) == 1:
        return hashes[0][1]
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in hashes).encode()).hexdigest()


def _num_parameters(spec: ModelSpec) -> int:
    cache = spec.cache.model_copy(update={"dtype": "f32"})  # which types a target takes for `auto` says nothing here
    spec = spec.model_copy(update={"activation_dtype": "f32", "cache": cache})
    table = GeometryTable(Geometry(), find_chip(GENERIC).geometry)
    weights = [value for value in build_graph(spec, arena_geometry(spec, table)).values if value.role == "weight"]
    return sum(prod(int(size) for size in weight.shape) for weight in weights)


def _quantization(file: WeightFile, spec: ModelSpec) -> str:
    """What a GGUF file says of its mixture of formats; else the format that most weights are held in."""
    try:
        name = LlamaFileType(file.metadata[file_keys.FILE_TYPE]).name
    except (KeyError, ValueError):
        return str(spec.weights.default).upper()
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def _templates(file: WeightFile, weights: Path, registered: ModelRecord | None) -> NamedTemplates | None:
    options = NO_OPTIONS if registered is None else registered.options
    if options.template is not None:
        return NamedTemplates({DEFAULT: options.template}, "")
    said = ReadMetadata.of(file.path, file.metadata) if file.format == "gguf" else weights
    try:
        return find_chat_templates([said] if options.tokenizer is None else [Path(options.tokenizer), said])
    except MlxrError:
        return None
