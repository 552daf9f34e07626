"""A folder's model as it is written to GGUF: its tensors in GGUF's order of rows, and all metadata."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Recipe, TensorSource
from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.source_graph import source_weights
from mlxr.loading.imported_model import import_model
from mlxr.quantise.block_quantiser import Bytes, Floats
from mlxr.quantise.gguf_architecture import architecture_facts, check_said, rope_tensors
from mlxr.quantise.gguf_output import entry
from mlxr.quantise.gguf_vocabulary import vocabulary_facts
from mlxr.quantise.mixtures import may_be_quantised
from mlxr.quantise.requantise import GgufSource
from mlxr.quantise.source_tensor import SourceTensor
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.tensor_rows import TensorRows, selected

_FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class _Part:
    """A tensor of the model, among the rows of a tensor of GGUF: model row i is the file's row places[i]."""

    rows: TensorRows
    places: npt.NDArray[np.int64]


def folder_source(folder: Path, accepted_keys: tuple[str, ...] = ()) -> GgufSource:
    """The model of a folder.

    Raises:
        MlxrError: it cannot be read, or not be said in GGUF.
    """
    spec, weights = import_model(folder, ImportOptions(accepted_keys=accepted_keys))
    facts = architecture_facts(spec, str(folder))
    factors = rope_tensors(spec.model)
    tensors = {name: _made(name, numbers) for name, numbers in factors.items()} | _tensors(spec, weights)
    stored = {name: TensorFact(tensor.shape, tensor.format.upper()) for name, tensor in tensors.items()}
    check_said(spec, facts, stored, {name: [*map(float, numbers)] for name, numbers in factors.items()})
    facts |= vocabulary_facts(folder, spec.model.vocab_size)
    entries = [(key, entry(fact.value, fact.kind)) for key, fact in facts.items()]
    files = frozenset(tensor.file for tensor in open_weights(weights).tensors.values())
    return GgufSource(str(folder), entries, {key: fact.value for key, fact in facts.items()}, tensors, files)


def _made(name: str, numbers: Floats) -> SourceTensor:
    def pieces() -> Iterator[Bytes]:
        yield numbers.view(np.uint8)

    return SourceTensor(name, numbers.shape, "f32", lambda first, last: numbers[None][first:last], pieces)


def _tensors(spec: ModelSpec, weights: Path) -> dict[str, SourceTensor]:
    mapped = MappedWeights(open_weights(weights))
    groups: dict[str, list[_Part]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for part in {part.name: part for weight in source_weights(spec).weights for part in weight.parts}.values():
        recipe = _plain_recipe(part, spec)
        rows = open_tensor(mapped, part)
        count = part.shape[0]
        places = np.arange(count, dtype=np.int64)
        if recipe.rows is not None:
            chosen = selected(recipe.rows, 0, count)
            places = np.arange(chosen.start, chosen.stop) if isinstance(chosen, slice) else chosen
        groups.setdefault(recipe.tensor, []).append(_Part(rows, places))
        shapes[recipe.tensor] = part.shape
    return {name: _joined(name, parts, shapes[name], spec) for name, parts in groups.items()}


def _plain_recipe(part: TensorSource, spec: ModelSpec) -> Recipe:
    for recipe in part.gguf:
        if recipe == Recipe(recipe.tensor, rows=recipe.rows):
            return recipe
    raise SpecError(f"{spec.name}: how {part.name} is written to GGUF is not known here")


def _joined(name: str, parts: list[_Part], shape: tuple[int, ...], spec: ModelSpec) -> SourceTensor:
    """A tensor of GGUF of the parts that lie among its rows."""
    total = sum(len(part.places) for part in parts)
    owner, row = np.full(total, -1, np.int64), np.zeros(total, np.int64)
    for index, part in enumerate(parts):
        owner[part.places], row[part.places] = index, np.arange(len(part.places))
    if (owner < 0).any():
        raise SpecError(f"{spec.name}: not all rows of {name} are known")
    columns = shape[1] if len(shape) > 1 else 0
    experts = spec.model.mlp.experts if spec.model.mlp is not None else None
    whole: tuple[int, ...] = (total, columns) if columns else (total,)
    attention = spec.model.attention
    if "_norm." in name and attention is not None and attention.qk_norm and attention.qk_norm.scope == "heads":
        own = {
            name: count
            for name, count in (("attn_q_norm", attention.num_heads), ("attn_k_norm", attention.num_kv_heads))
        }
        whole = next(((count, total // count) for part, count in own.items() if part in name), whole)
    if "_exps." in name and experts is not None:
        whole = (experts.count, total // experts.count, *whole[1:])

    def rows(first: int, last: int) -> Floats:
        if not columns:  # a vector is one row
            return _gather(parts, owner, row, 0, total).reshape(1, -1)
        return _gather(parts, owner, row, first, last)

    stored = parts[0].rows.format
    keeps = stored in _FLOATS and len(whole) > 1 and may_be_quantised(name, whole)
    return SourceTensor(name, whole, stored if keeps else "f32", partial(rows))


def _gather(
    parts: list[_Part], owner: npt.NDArray[np.int64], row: npt.NDArray[np.int64], first: int, last: int
) -> Floats:
    """Rows [first, last) of a joined tensor."""
    found: Floats | None = None
    for index in np.unique(owner[first:last]):
        part, own = parts[index], owner[first:last] == index
        places = row[first:last][own]
        begin = int(places.min())
        numbers = part.rows.numbers(begin, int(places.max()) + 1)[places - begin]
        if found is None:
            found = np.empty((last - first, numbers.shape[1]), np.float32)
        found[own] = numbers
    assert found is not None, "every row has an owner"
    return found
