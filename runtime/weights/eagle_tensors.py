"""The tensors of a head that other files bring for a model (EAGLE-3), among those of the model.

They get the names of the family of such heads: `eagle.N.fc.weight` of layer N, which is behind the model's own. So a
head and a model may be files of different kinds.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.stored_tensor import StoredTensor
from mlxr.runtime.weights.weight_file import WeightFile

_IDS = "eagle.0.d2t"
_MOST_IDS = 1 << 24


def head_file(file: WeightFile) -> WeightFile:
    """The head's own file, with the names of layer 0.

    Raises:
        WeightsError: two tensors have one name then.
    """
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in file.tensors.items():
        plain = name.removeprefix("model.")
        plain = f"layers.0.{rest}" if (rest := plain.removeprefix("midlayer.")) != plain else plain
        plain = {"draft_id_to_target_id": "d2t"}.get(plain, plain)
        if (new := f"eagle.0.{plain}") in tensors:
            raise WeightsError(f"{file.path}: two tensors are {plain} of the head")
        tensors[new] = replace(tensor, name=new)
    return replace(file, tensors=tensors)


def with_eagle(file: WeightFile, head: WeightFile, layer: int) -> WeightFile:
    """A model's file with the tensors of a head behind its layers.

    Args:
        file: the model's.
        head: the head's, by `head_file`.
        layer: the number of the head's layer.
    """
    return replace(file, tensors={**file.tensors, **_numbered(head.tensors, layer)})


def guessed_ids(head: WeightFile, num_guessed: int, vocab_size: int) -> npt.NDArray[np.int32] | None:
    """Of each token that a head may guess, the model's id; None: they are the same.

    Args:
        head: the head's file, by `head_file`. GGUF files have ids, others their distances from the head's own.
        num_guessed: how many it may guess.
        vocab_size: how many the model has.

    Raises:
        WeightsError: these are no ids of the model's.
    """
    if _IDS not in head.tensors:
        return None
    stored = head.tensors[_IDS]
    where = f"{head.path}: tensor d2t"
    if stored.num_elements != num_guessed or num_guessed > _MOST_IDS or stored.type not in ("I64", "I32"):
        shape = list(stored.shape)
        raise WeightsError(f"{where} is {shape} {stored.type}; expected {num_guessed} integers, one a guessed token")
    ids = head.read(_IDS).reshape(-1).astype(np.int64)
    if head.format != "gguf":
        ids += np.arange(num_guessed)
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise WeightsError(f"{where} names token {ids.max()}, and the model has {vocab_size}: it is for another model")
    return ids.astype(np.int32)


def _numbered(tensors: Mapping[str, StoredTensor], layer: int) -> dict[str, StoredTensor]:
    numbered = {f"eagle.{layer}.{name.removeprefix('eagle.0.')}": tensor for name, tensor in tensors.items()}
    return {name: replace(tensor, name=name) for name, tensor in numbered.items()}
