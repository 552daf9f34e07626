"""Writes a model with LoRA adapters inside: what they add is added to its weights.

A GGUF file becomes one with the same metadata, whose tensors keep their formats; those that adapters change are
quantised anew. A folder of floats becomes one with the same files and types.
"""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import DOWN, UP, TensorSource, adapted_matrices, file_keys
from mlxr.compiler.errors import WeightsError
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.schedule.recipes import recipes
from mlxr.compiler.spec.adapters import RANK_STEP, Adapters
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.adapter_paths import AdapterPath
from mlxr.loading.imported_model import import_model
from mlxr.output_file import check_not_read, new_folder
from mlxr.quantise.block_quantiser import BLOCK_FORMATS, Bytes, Floats
from mlxr.quantise.gguf_output import ALIGNMENT, Progress, write_gguf
from mlxr.quantise.requantise import gguf_source
from mlxr.quantise.safetensors_output import PlainTensor, write_safetensors
from mlxr.quantise.source_tensor import SourceTensor, of_file
from mlxr.runtime.adapters.adapter_matrices import adapter_matrices, rows_of
from mlxr.runtime.adapters.open_adapter import open_adapter
from mlxr.runtime.engine.adapter_set import check_scale
from mlxr.runtime.weights.element_types import encode
from mlxr.runtime.weights.open_tensor import find_recipe
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.stored_tensor import quoted
from mlxr.runtime.weights.weight_file import WeightFile

_FLOATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


@dataclass(frozen=True)
class Addend:
    """What an adapter adds to some rows of a file's tensor.

    Attributes:
        rows: of each of the tensor's rows its number in the matrices; -1: nothing is added to it.
        up, down: [rank, rows], with the scale in it, and [rank, columns].
    """

    rows: npt.NDArray[np.int64]
    up: Floats
    down: Floats


def fuse_adapters(model: Path, adapters: Sequence[AdapterPath], out: Path, progress: Progress | None = None) -> int:
    """Writes the model, whole or not at all, and returns how many of its tensors have changed.

    Args:
        model: a GGUF file, or a folder with a config.json.
        adapters: are added, each times its scale.
        out: the file or folder to make.
        progress: told before each tensor.

    Raises:
        MlxrError: it cannot be read or written, an adapter is for another model, or a tensor has a format in which it
            cannot be written.
    """
    spec, weights = import_model(model, ImportOptions())
    file = open_weights(weights)
    addends = _addends(spec, file, adapters)
    if file.format == "gguf":
        _write_gguf(model, addends, out, progress)
    else:
        _write_folder(model, file, addends, out, progress)
    return len(addends)


def _addends(spec: ModelSpec, file: WeightFile, adapters: Sequence[AdapterPath]) -> dict[str, list[Addend]]:
    """What is added to tensors of the file, by their names."""
    parts = [
        TensorSource(name, shape, *recipes(spec.model, name)) for name, shape in adapted_matrices(spec.model).items()
    ]
    found: dict[str, list[Addend]] = {}
    for adapter in adapters:
        scale, opened = check_scale(adapter.scale), open_adapter(adapter.path)
        places = Adapters(rank=-(-opened.rank // RANK_STEP) * RANK_STEP, slots=1)
        matrices = adapter_matrices(opened, parts, places).matrices
        for part in parts:
            if part.name + UP not in matrices:
                continue
            recipe = find_recipe(file, part)
            if recipe is None or recipe.stack > 1 or recipe.is_transposed or recipe.columns is not None:
                raise WeightsError(f"{file.path}: {part.name} lies in it in a way that nothing can be added to")
            tensor = file.tensors[recipe.tensor]
            rows = np.full(tensor.shape[0], -1)
            rows[rows_of(recipe, part.shape[0])] = np.arange(part.shape[0])
            up = matrices[part.name + UP] * np.float32(scale / recipe.times)
            found.setdefault(recipe.tensor, []).append(Addend(rows, up, matrices[part.name + DOWN]))
    return found


def _added(tensor: SourceTensor, addends: Sequence[Addend]) -> SourceTensor:
    """A tensor with what adapters add; it can no longer be copied as it lies."""

    def rows(first: int, last: int) -> Floats:
        numbers = np.array(tensor.rows(first, last), np.float32)
        for addend in addends:
            own = addend.rows[first:last]
            there = own >= 0
            numbers[there] += addend.up[:, own[there]].T @ addend.down
        return numbers

    return replace(tensor, rows=rows, copied=None)


def _write_gguf(model: Path, addends: dict[str, list[Addend]], out: Path, progress: Progress | None) -> None:
    source = gguf_source(model)
    check_not_read(out, source.files)
    tensors = []
    for name, tensor in source.tensors.items():
        changed = _added(tensor, addends[name]) if name in addends else tensor
        if name in addends and tensor.format not in (*BLOCK_FORMATS, *_FLOATS.values()):
            raise WeightsError(
                f"{source.where}: tensor {quoted(name)} is {tensor.format}, which cannot be quantised anew: fuse the "
                "adapter into the original, and quantise that (mlxr quantize)"
            )
        tensors.append(changed.written(tensor.format))
    split = (file_keys.SPLIT_NUMBER, file_keys.SPLIT_COUNT, file_keys.SPLIT_TENSORS)
    entries = [(key, value) for key, value in source.entries if key not in split]
    write_gguf(out, entries, tensors, progress, source.metadata.get(file_keys.ALIGNMENT, ALIGNMENT))


def _write_folder(
    model: Path, file: WeightFile, addends: dict[str, list[Addend]], out: Path, progress: Progress | None
) -> None:
    if file.beside:
        raise WeightsError(f"{model}: has more than a text model ({', '.join(file.beside)}), which would be lost")
    tensors = []
    for name, stored in file.tensors.items():
        if stored.type not in _FLOATS or stored.scales is not None:
            raise WeightsError(
                f"{model}: tensor {quoted(name)} is {stored.type}, so it is quantised: fuse the adapter into the "
                "original, or into a GGUF file"
            )
        tensor = of_file(stored)
        if name in addends:
            tensor = _added(tensor, addends[name])
        tensors.append(PlainTensor(name, stored.shape, stored.type, _pieces(tensor, _FLOATS[stored.type])))
    with new_folder(out, sum(tensor.size_bytes for tensor in tensors)) as folder:
        write_safetensors(folder, tensors, progress)
        for name in file_keys.DESCRIBING_FILES:
            if (model / name).is_file():
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(model / name, folder / name)


def _pieces(tensor: SourceTensor, dtype: str) -> Callable[[], Iterable[Bytes]]:
    return tensor.copied if tensor.copied is not None else partial(_converted, tensor, dtype)


def _converted(tensor: SourceTensor, dtype: str) -> Iterable[Bytes]:
    for _, numbers in tensor.slabs():
        yield np.ascontiguousarray(encode(numbers, dtype)).view(np.uint8)
