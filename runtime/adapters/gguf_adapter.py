"""Reads GGUF adapters, as llama.cpp's convert_lora_to_gguf.py writes them.

Source: llama.cpp, src/llama-adapter.cpp.
"""

from pathlib import Path

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.adapters.adapter_file import AdapterFile, LowRank, paired
from mlxr.runtime.weights.gguf_header import read_gguf_header
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted
from mlxr.runtime.weights.weight_file import WeightFile

_TYPE, _KIND, _ALPHA = "general.type", "adapter.type", "adapter.lora.alpha"
_INVOCATION = "adapter.alora.invocation_tokens"


def read_gguf_adapter(path: Path) -> AdapterFile:
    """An adapter in a GGUF file.

    Raises:
        WeightsError: it is corrupt, no adapter, or one of a kind that is not supported.
    """
    header = read_gguf_header(path)
    kind, what = header.metadata.get(_TYPE), header.metadata.get(_KIND)
    if kind != "adapter":
        raise WeightsError(f"{path}: is a GGUF file of type {quoted(str(kind))}, not an adapter")
    if what != "lora":
        raise WeightsError(f"{path}: is an adapter of type {quoted(str(what))}; expected lora")
    if _INVOCATION in header.metadata:
        raise WeightsError(f"{path}: is an activated LoRA ({_INVOCATION}), which is not supported")
    alpha = header.metadata.get(_ALPHA, 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise WeightsError(f"{path}: {_ALPHA} is {alpha!r}; expected a number")
    downs: dict[str, StoredTensor] = {}
    ups: dict[str, StoredTensor] = {}
    for name, tensor in header.tensors.items():
        base, _, last = name.rpartition(".")
        matrices = {"lora_a": downs, "lora_b": ups}.get(last)
        if matrices is None:
            raise WeightsError(f"{path}: holds {quoted(name)}, which is not a matrix of a LoRA adapter")
        matrices[base.removesuffix(".weight")] = tensor
    # llama.cpp takes an alpha of 0, or none, for a scale of 1.
    changes = {
        name: LowRank(down, up, float(alpha) / down.shape[0] if alpha else 1.0)
        for name, (down, up) in paired(path, downs, ups).items()
    }
    return AdapterFile(path, "gguf", WeightFile(path, "gguf", header.tensors, header.metadata), changes)
