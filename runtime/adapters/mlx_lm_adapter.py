"""Reads adapters as mlx-lm saves them: adapter_config.json and adapters.safetensors.

Source: mlx-lm, mlx_lm/tuner/lora.py and utils.py: y + scale * (x @ lora_a) @ lora_b.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import text_name
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.adapters.adapter_file import AdapterFile, LowRank, paired
from mlxr.runtime.weights.safetensors_header import read_safetensors_header
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted
from mlxr.runtime.weights.weight_file import WeightFile

WEIGHTS = "adapters.safetensors"


def read_mlx_lm_adapter(folder: Path, config: Mapping[str, Any]) -> AdapterFile:
    """An adapter in a folder of mlx-lm's.

    Args:
        folder: the folder.
        config: its adapter_config.json.

    Raises:
        WeightsError: it is corrupt, or of a kind that is not supported.
    """
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise WeightsError(f"{folder}: fine_tune_type is {kind!r}; only lora is supported")
    parameters = config.get("lora_parameters")
    scale = parameters.get("scale") if isinstance(parameters, Mapping) else None
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise WeightsError(f"{folder}: lora_parameters.scale of adapter_config.json is {scale!r}; expected a number")
    tensors = read_safetensors_header(folder / WEIGHTS)
    downs: dict[str, StoredTensor] = {}
    ups: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        module, _, last = name.rpartition(".")
        matrices = {"lora_a": downs, "lora_b": ups}.get(last)
        if matrices is None:
            raise WeightsError(f"{folder}: holds {quoted(name)}, which is not a matrix of a plain LoRA adapter")
        matrices[text_name(module)] = tensor
    changes = {
        name: LowRank(down, up, float(scale), is_turned=True)
        for name, (down, up) in paired(folder, downs, ups, is_turned=True).items()
    }
    return AdapterFile(folder, "safetensors", WeightFile(folder / WEIGHTS, "safetensors", tensors), changes)
