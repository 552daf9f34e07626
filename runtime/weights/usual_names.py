"""The text model's tensors among those of a file, under the names that a file of it alone would have."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mlxr.compiler.artifact import FileKind, guessing_layers, part_beside, text_name
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.packed_integers import with_integers
from mlxr.runtime.weights.scaled_tensors import with_scales
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted
from mlxr.runtime.weights.turned_integers import with_turned

_PREFIX = "model."
Tensors = Mapping[str, StoredTensor]


def with_usual_names(
    tensors: Tensors, path: Path, kind: FileKind
) -> tuple[Tensors, dict[str, tuple[StoredTensor, ...]]]:
    """The text model's tensors, and those beside them by what they are for.

    Files of several models have a prefix before the names of one. transformers' `AutoModel` and sentence-transformers
    write files without the head, in which `layers.0...` is `model.layers.0...`.

    Args:
        tensors: all tensors of the file.
        path: the file, for messages.
        kind: of it.

    Raises:
        WeightsError: two tensors have one name then.
    """
    guessing = guessing_layers(map(text_name, tensors))
    beside: dict[str, list[StoredTensor]] = {}
    text: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        new = text_name(name)
        if (part := part_beside(new, kind, guessing)) is not None:
            beside.setdefault(part, []).append(tensor)
            continue
        if new in text:
            raise WeightsError(f"{path}: {quoted(text[new].name)} and {quoted(name)} are the same tensor of the model")
        text[new] = tensor
    if "embed_tokens.weight" in text and not any(name.startswith(_PREFIX) for name in text):
        text = {name if name.startswith("lm_head.") else _PREFIX + name: tensor for name, tensor in text.items()}
    return with_turned(with_integers(with_scales(_renamed(text)))), {part: tuple(held) for part, held in beside.items()}


def _renamed(tensors: Tensors) -> Tensors:
    return {name: tensor if tensor.name == name else replace(tensor, name=name) for name, tensor in tensors.items()}
