"""The tensors of a model's own head that guesses further tokens, under the names of one more layer.

DeepSeek's files and GGUF have it as layer N of a model with N; those of Qwen have it under `mtp`, beside the layers.
Where there are several such layers, the first is the head: it may guess on from its own rows.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from mlxr.compiler.artifact import text_name
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.packed_integers import with_integers
from mlxr.runtime.weights.scaled_tensors import with_scales
from mlxr.runtime.weights.stored_tensor import StoredTensor
from mlxr.runtime.weights.weight_file import WeightFile

_LAYER = re.compile(r"(model\.layers|blk)\.(\d{1,6})\.(.+)", re.ASCII)
_BESIDE = (
    ("mtp.layers.0.", ""),
    ("mtp.fc.", "eh_proj."),
    ("mtp.pre_fc_norm_embedding.", "enorm."),
    ("mtp.pre_fc_norm_hidden.", "hnorm."),
    ("mtp.norm.", "shared_head.norm."),
)
"""Names in Qwen's files, and in a layer."""
_SHARED = ("embed_tokens.", "shared_head.head.", "nextn.embed_tokens.", "nextn.shared_head_head.")
"""Copies of the model's own, which transformers reads in their place."""
_NEEDED = ("enorm.weight", "hnorm.weight", "eh_proj.weight")


def with_head(file: WeightFile) -> WeightFile | None:
    """The file with its head's tensors among the model's; None: it has no head that can be used."""
    head, missing = _head(file)
    if not head or missing:
        return None
    beside = {part: tensors for part, tensors in file.beside.items() if part != "guesses"}
    return replace(file, tensors={**file.tensors, **with_integers(with_scales(head))}, beside=beside)


def lack_of_head(file: WeightFile) -> str | None:
    """What a file's head lacks, for people; None: the head is whole, or there is none."""
    _, missing = _head(file)
    if not missing or len(missing) == len(_NEEDED):  # of a head of another kind, all are missing
        return None
    return (
        f"{file.path}: has a layer that guesses further tokens, but not {' or '.join(missing)}, without which it is of "
        "no use: fetch the file anew, or take another conversion"
    )


def require_head(file: WeightFile) -> WeightFile:
    """`with_head` of a file that must have one.

    Raises:
        WeightsError: it has none.
    """
    found = with_head(file)
    if found is None:
        what = f"{file.path}: has no head of the model's own that guesses tokens"
        raise WeightsError(lack_of_head(file) or what)
    return found


def _head(file: WeightFile) -> tuple[dict[str, StoredTensor], list[str]]:
    """The head's tensors by their names in a layer, and the names of those that it lacks."""
    layers = [int(match[2]) for name in file.tensors if (match := _LAYER.fullmatch(name))]
    if not layers or "guesses" not in file.beside:
        return {}, []
    number = max(layers) + 1
    head = dict(_renamed(file.beside["guesses"], number))
    prefix = f"model.layers.{number}." if file.format == "safetensors" else f"blk.{number}.nextn."
    missing = [name for name in _NEEDED if prefix + name not in head]
    if any(tensor.name.startswith("mtp.") for tensor in file.beside["guesses"]):
        names = {new: begin for begin, new in _BESIDE if new}
        return head, [names[name.removesuffix("weight")] + "weight" for name in missing]
    return head, [prefix + name for name in missing]


def _renamed(tensors: tuple[StoredTensor, ...], number: int) -> Iterator[tuple[str, StoredTensor]]:
    for tensor in tensors:
        name = text_name(tensor.name).removeprefix("model.") if "mtp." in tensor.name else text_name(tensor.name)
        for begin, new in _BESIDE:
            if name.startswith(begin):
                name = f"model.layers.{number}.{new}{name.removeprefix(begin)}"
        match = _LAYER.fullmatch(name)
        if match and int(match[2]) == number and not match[3].startswith(_SHARED):
            yield name, replace(tensor, name=name)
