"""Reads adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors.

Source: PEFT, src/peft/tuners/lora (config.py, layer.py) and utils/save_and_load.py.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import text_name
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.adapters.adapter_file import AdapterFile, LowRank, paired
from mlxr.runtime.weights.safetensors_header import read_safetensors_header
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted
from mlxr.runtime.weights.weight_file import WeightFile

WEIGHTS = "adapter_model.safetensors"
_NAME = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<which>[AB])(?:\.[^.]+)?\.weight")
_REFUSED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "alora_invocation_tokens": "activated LoRA",
    "modules_to_save": "whole modules (modules_to_save)",
    "layer_replication": "repeated layers",
    "lora_bias": "biases of its own (lora_bias)",
    "trainable_token_indices": "embeddings of single tokens",
    "target_parameters": "parameters that are not the weights of modules (target_parameters)",
    "use_bdlora": "block-diagonal LoRA",
}
"""Keys that change what an adapter is, and what it then has."""
_FROM_WEIGHTS = ("pissa", "olora", "corda", "lora_ga")
"""How matrices began that are parts of the weights: PEFT takes these parts out of a model that it gives the adapter."""


def read_peft_adapter(folder: Path, config: Mapping[str, Any]) -> AdapterFile:
    """An adapter in a folder of PEFT's.

    Args:
        folder: the folder.
        config: its adapter_config.json.

    Raises:
        WeightsError: it is corrupt, or of a kind that is not supported.
    """
    kind = config.get("peft_type")
    if kind != "LORA":
        raise WeightsError(f"{folder}: is an adapter of PEFT type {quoted(str(kind))}; expected LORA")
    for key, what in _REFUSED.items():
        if config.get(key):
            raise WeightsError(f"{folder}: has {what}, which is not supported: {key} is {config[key]!r}")
    if config.get("bias", "none") != "none":
        raise WeightsError(f"{folder}: has trained biases, which are not supported: bias is {config['bias']!r}")
    begun = config.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_FROM_WEIGHTS):
        raise WeightsError(
            f"{folder}: is for weights that PEFT has changed, which is not supported: init_lora_weights is {begun!r}; "
            "save it with path_initial_model_for_weight_conversion"
        )
    path = folder / WEIGHTS
    if not path.is_file() and (folder / "adapter_model.bin").is_file():
        raise WeightsError(f"{folder}: has adapter_model.bin, and reading it can run code: save it as {WEIGHTS}")
    tensors = read_safetensors_header(path)
    downs: dict[str, StoredTensor] = {}
    ups: dict[str, StoredTensor] = {}
    own: dict[str, str] = {}  # what PEFT calls modules, which patterns match
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise WeightsError(f"{folder}: holds {quoted(name)}, which is not a matrix of a plain LoRA adapter")
        matrices, module = downs if match["which"] == "A" else ups, text_name(match["module"])
        if module in matrices:
            raise WeightsError(f"{folder}: {quoted(name)} and another tensor are the same matrix")
        matrices[module], own[module] = tensor, match["module"]
    changes = {
        name: LowRank(down, up, _scale(folder, config, own[name], down.shape[0]))
        for name, (down, up) in paired(folder, downs, ups).items()
    }
    return AdapterFile(folder, "safetensors", WeightFile(path, "safetensors", tensors), changes)


def _scale(folder: Path, config: Mapping[str, Any], module: str, rank: int) -> float:
    """The factor of a module's product: alpha / rank, or alpha / sqrt(rank) where the ranks are stabilised."""
    alpha, expected = config.get("lora_alpha"), config.get("r")
    alpha = _of_pattern(folder, config, "alpha_pattern", module, alpha)
    expected = _of_pattern(folder, config, "rank_pattern", module, expected)
    for key, value in (("lora_alpha", alpha), ("r", expected)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise WeightsError(f"{folder}: {key} is {value!r}; expected a number")
    if expected != rank:
        raise WeightsError(f"{folder}: {quoted(module)} has rank {rank}, adapter_config.json says {expected}")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_pattern(folder: Path, config: Mapping[str, Any], key: str, module: str, usual: Any) -> Any:
    """What a pattern says of a module, or what holds for the others."""
    patterns = config.get(key) or {}
    if not isinstance(patterns, Mapping):
        raise WeightsError(f"{folder}: {key} is {patterns!r}; expected an object")
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error as error:
            raise WeightsError(f"{folder}: {key}: {quoted(pattern)} is not a regular expression: {error}") from error
    return usual
