"""Opens weight files (safetensors and GGUF) and loads the weights of an artifact from them."""

from mlxr.runtime.weights.gguf_parts import gguf_metadata
from mlxr.runtime.weights.load_weights import Progress, load_weights
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.stored_tensor import StoredTensor
from mlxr.runtime.weights.weight_file import WeightFile

__all__ = ["Progress", "StoredTensor", "WeightFile", "gguf_metadata", "load_weights", "open_weights"]
