"""Quantises a GGUF file into another one, with all of its metadata."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import WeightsError
from mlxr.compiler.text import counted
from mlxr.output_file import check_not_read
from mlxr.quantise.gguf_output import ALIGNMENT, GgufTensor, Progress, entry, gguf_bytes, write_gguf
from mlxr.quantise.importance import Importance
from mlxr.quantise.mixtures import FLOATS, Mixture, ModelFacts, Wishes, choose_formats, in_order
from mlxr.quantise.source_tensor import SourceTensor, of_file
from mlxr.runtime.weights.gguf_header import GgufHeader
from mlxr.runtime.weights.gguf_parts import read_gguf_model
from mlxr.runtime.weights.stored_tensor import quoted

_VERSION = "general.quantization_version"
_SPLIT = (file_keys.SPLIT_NUMBER, file_keys.SPLIT_COUNT, file_keys.SPLIT_TENSORS)
_VERY_LARGE = {"llama": 80, "qwen2": 80, "olmo": 80, "deci": 80, "jais2": 68}
"""Layers with which llama.cpp counts a model of an architecture as one of 70 B parameters."""
_NEED_NO_WEIGHTS = ("token_embd.weight", "per_layer_token_embd.weight", "output.weight")
_HEED_NO_WEIGHTS = (*FLOATS, "q8_0", "mxfp4")
"""Formats that are written without weights, whatever an importance matrix has."""
_OWN_RULES = ("glm5-next", "bailingmoe3")
"""Architectures for which llama-quantize has rules that are not here."""


@dataclass(frozen=True)
class GgufSource:
    """A model that is to be written as GGUF: its metadata, and its tensors by name.

    Attributes:
        where: how messages name it.
        entries: keys of the metadata, and their types and values as bytes.
        metadata: the same, as values.
        tensors: by name.
        files: those that it is read from.
        accepted_keys: keys of the metadata that change nothing according to the user.
    """

    where: str
    entries: Sequence[tuple[str, bytes]]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    files: frozenset[Path]
    accepted_keys: tuple[str, ...] = ()

    @property
    def facts(self) -> ModelFacts:
        """What the rules of mixtures need to know."""
        name = str(self.metadata.get(file_keys.ARCHITECTURE, ""))

        def number(key: str, missing: int) -> int:
            value = self.metadata.get(f"{name}.{key}", missing)
            value = value[0] if isinstance(value, list) and value else value
            return int(value) if isinstance(value, int) else missing

        layers, heads = number("block_count", 0), number("attention.head_count", 1)
        kv_heads = number("attention.head_count_kv", heads)
        groups = heads // kv_heads if kv_heads else 0
        is_70b = _VERY_LARGE.get(name) == layers and not (name == "llama" and groups == 1)
        return ModelFacts(name, layers, groups, number("expert_count", 0), is_70b)


def gguf_source(path: Path, accepted_keys: tuple[str, ...] = ()) -> GgufSource:
    """A GGUF model, of one file or several.

    Raises:
        WeightsError: it cannot be read.
    """
    header = read_gguf_model(path)
    tensors = {name: of_file(tensor) for name, tensor in header.tensors.items() if name not in header.metadata}
    files = frozenset({header.path, *(tensor.file for tensor in header.tensors.values())})
    return GgufSource(str(path), _entries(header), header.metadata, tensors, files, accepted_keys)


def _entries(header: GgufHeader) -> list[tuple[str, bytes]]:
    try:
        with header.path.open("rb") as stream:
            data = stream.read(max((end for _, end in header.spans.values()), default=0))
    except OSError as error:
        raise WeightsError(f"{header.path}: cannot be read: {error.strerror or error}") from error
    return [(key, data[begin:end]) for key, (begin, end) in header.spans.items()]


@dataclass(frozen=True)
class Quantisation:
    """How a file is quantised.

    Attributes:
        mixture: the rules by which tensors get their formats.
        wishes: what goes before the rules.
        importance: how much errors in columns of tensors count; None: all the same.
        formats: the format of each of these tensors, whatever the rules say.
        requantise: whether tensors that are quantised already may be quantised again.
        threads: how many work; None: one for each core.
    """

    mixture: Mixture
    wishes: Wishes = field(default_factory=Wishes)
    importance: Importance | None = None
    formats: Mapping[str, str] = field(default_factory=dict)
    requantise: bool = False
    threads: int | None = None


def chosen_formats(source: GgufSource, how: Quantisation) -> dict[str, str]:
    """The format of each tensor, in the order of the file to be written.

    Raises:
        WeightsError: a tensor would be quantised again, or the mixture cannot do without an importance matrix.
    """
    facts = source.facts
    if facts.architecture in _OWN_RULES:
        raise WeightsError(
            f"{source.where}: which tensor of {facts.architecture} gets which format is not known here: quantise it "
            "with llama-quantize"
        )
    given = {name: (tensor.shape, tensor.format) for name, tensor in source.tensors.items()}
    formats = choose_formats(given, how.mixture, facts, how.wishes, how.importance is not None) | dict(how.formats)
    for name, format in formats.items():
        old = given[name][1]
        if old not in FLOATS and old != format and not how.requantise:
            raise WeightsError(
                f"{source.where}: tensor {quoted(name)} is {old} already, and quantising it again loses more than "
                "quantising the original does; --allow-requantize does it all the same"
            )
        has_weights = how.importance is not None and name in how.importance.columns
        if (how.mixture.name, format) == ("q2_k_s", "q2_k") and not has_weights and name not in _NEED_NO_WEIGHTS:
            lack = "" if how.importance is None else f", and {how.importance.path} has no weights for this tensor"
            raise WeightsError(
                f"{source.where}: tensor {quoted(name)}: in q2_k_s, q2_k needs an importance matrix{lack}: make one "
                "(mlxr imatrix) and name it with --imatrix, or take q2_k"
            )
    return formats


def importance_gaps(source: GgufSource, how: Quantisation, formats: Mapping[str, str]) -> str:
    """What the importance matrix and the model do not have in common, in a line; empty: nothing is amiss.

    llama-imatrix leaves out embeddings, and usually the output projection: they are not missed.

    Args:
        source: the model.
        how: with an importance matrix or without one.
        formats: the format of each tensor.
    """
    if how.importance is None:
        return ""
    has, gaps = how.importance.columns.keys(), []
    uses = [
        name
        for name, format in formats.items()
        if format not in (*_HEED_NO_WEIGHTS, source.tensors[name].format) and name not in _NEED_NO_WEIGHTS
    ]
    if lacks := [name for name in uses if name not in has]:
        gaps.append(
            f"has no weights for {len(lacks)} of {counted(len(uses), 'tensor')} ({_some(lacks)}), of which errors in "
            "all columns count the same"
        )
    if others := [name for name in has if name not in source.tensors]:
        gaps.append(f"has weights for {counted(len(others), 'tensor')} that the model lacks ({_some(others)})")
    return f"{how.importance.path}: {'; it '.join(gaps)}" if gaps else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def write_quantised(source: GgufSource, path: Path, how: Quantisation, progress: Progress | None = None) -> int:
    """Writes a model, quantised, and returns the size of the file in bytes.

    Raises:
        MlxrError: it cannot be read, quantised or written.
    """
    check_not_read(path, source.files)
    return write_gguf(path, *_planned(source, how), progress=progress, alignment=alignment_of(source))


def quantised_bytes(source: GgufSource, how: Quantisation) -> int:
    """The size of the file that `write_quantised` writes.

    Raises:
        MlxrError: as it.
    """
    return gguf_bytes(*_planned(source, how), alignment=alignment_of(source))


def alignment_of(source: GgufSource) -> int:
    """Bytes, of which each tensor begins at a multiple in files that are written."""
    alignment: int = source.metadata.get(file_keys.ALIGNMENT, ALIGNMENT)
    return alignment


def _planned(source: GgufSource, how: Quantisation) -> tuple[list[tuple[str, bytes]], list[GgufTensor]]:
    """The entries and tensors of the file."""
    formats = chosen_formats(source, how)
    tensors = []
    for name in in_order(formats):
        tensor = source.tensors[name]
        weights = None if how.importance is None else how.importance.of(name, tensor.shape)
        tensors.append(tensor.written(formats[name], weights, how.threads))
    entries = [(key, value) for key, value in source.entries if key not in (*_SPLIT, _VERSION, file_keys.FILE_TYPE)]
    entries += [(_VERSION, entry(2, "u32")), (file_keys.FILE_TYPE, entry(how.mixture.file_type, "u32"))]
    if how.importance is not None:
        entries += how.importance.entries
    return entries, tensors
