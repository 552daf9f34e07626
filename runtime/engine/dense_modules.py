"""Products behind a model's pooling: sentence-transformers' modules of the kind Dense, also in GGUF files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.pool import Vector
from mlxr.runtime.json_file import read_json_object
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.weight_file import WeightFile

_IN_GGUF = ("dense_2.weight", "dense_3.weight")
_ACTIVATIONS = ("Identity", "Tanh")


@dataclass(frozen=True)
class Dense:
    """One product: activation(weight @ x + bias).

    Attributes:
        weight: [out, in], f32.
        bias: [out], f32.
        activation: the name of its function.
    """

    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    activation: str

    def __call__(self, vector: Vector) -> Vector:
        """What becomes of a vector, [in] -> [out]."""
        if len(vector) != self.weight.shape[1]:
            raise RequestError(
                f"a Dense module takes {self.weight.shape[1]} numbers, and gets {len(vector)}: name a pooling to get "
                "embeddings without it"
            )
        out = self.weight @ vector + self.bias
        return np.asarray(np.tanh(out) if self.activation == "Tanh" else out, np.float32)


def read_dense(folder: Path) -> Dense:
    """The module in a folder.

    Raises:
        RequestError: its files cannot be read, or ask for something that is not supported.
        WeightsError: its weights are corrupt, or there are none.
    """
    path = folder / "config.json"
    config: dict[str, Any] = read_json_object(path, file_keys.CONFIG_BYTES, RequestError)
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise RequestError(
            f"{path}: activation_function is {activation!r}, which is not supported: name a pooling to get embeddings "
            "without the module"
        )
    file = open_weights(folder)
    if "linear.weight" not in file.tensors:
        raise RequestError(f"{folder}: holds no linear.weight, so it is not a Dense module")
    return _dense(file, "linear.weight", activation)


def read_dense_of_gguf(file: WeightFile) -> tuple[Dense, ...]:
    """The products in a GGUF file, in order; they have neither biases nor functions."""
    return tuple(_dense(file, name, "Identity") for name in _IN_GGUF if name in file.tensors)


def _dense(file: WeightFile, name: str, activation: str) -> Dense:
    weight, bias_name = np.asarray(file.read(name), np.float32), name.replace(".weight", ".bias")
    has_bias = bias_name in file.tensors
    bias = np.asarray(file.read(bias_name), np.float32) if has_bias else np.zeros(len(weight), np.float32)
    return Dense(weight, bias, activation)


def through(modules: tuple[Dense, ...], vector: Vector) -> Vector:
    """What modules make of a pooled vector, one after the other."""
    for module in modules:
        vector = module(vector)
    return vector
