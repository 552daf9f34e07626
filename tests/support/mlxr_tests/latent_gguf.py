"""GGUF files of families with latent attention, for `family_gguf`."""

from typing import Any

import numpy as np

from mlxr.compiler.artifact import Recipe
from mlxr_tests import indexer_gguf

_LATENT = {
    "attention.head_count_kv": 1,
    "attention.key_length": 64,
    "attention.value_length": 48,
    "attention.key_length_mla": 40,
    "attention.value_length_mla": 40,
    "attention.kv_lora_rank": 48,
    "attention.q_lora_rank": 56,
    "rope.dimension_count": 16,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
    "rope.scaling.yarn_log_multiplier": 0.07,
    "leading_dense_block_count": 1,
    "expert_gating_func": 2,
}
_GLM = {key: value for key, value in _LATENT.items() if "scaling" not in key and key != "expert_gating_func"}


def cases(grouped: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Cases as those of `family_gguf`; `grouped` is what files with experts say of them."""
    softmax = {"expert_gating_func": 1, "expert_weights_norm": False, "attention.q_lora_rank": 0}
    return {
        "deepseek_v3": (
            "deepseek_v3",
            "deepseek2",
            grouped | _LATENT | {"expert_group_count": 4, "expert_group_used_count": 2},
        ),
        "deepseek_v2": ("deepseek_v2, one projection", "deepseek2", grouped | _LATENT | softmax),
        "deepseek_v32": (
            "deepseek_v32",
            "deepseek32",
            grouped | _LATENT | indexer_gguf.KEYS | {"rope.scaling.yarn_log_multiplier": 0.1},
        ),
        "glm_moe_dsa": ("glm_moe_dsa", "glm-dsa", grouped | _GLM | indexer_gguf.KEYS),
        "mistral4": (
            "mistral4",
            "mistral4",
            grouped
            | _LATENT
            | {
                "leading_dense_block_count": 0,
                "expert_gating_func": 1,
                "rope.scaling.yarn_log_multiplier": 0.1,
                "attention.temperature_scale": 0.3,
                "attention.temperature_length": 16,
            },
        ),
        "minicpm3": (
            "minicpm3",
            "minicpm3",
            {
                "attention.head_count_kv": 6,
                "attention.key_length": 56,
                "attention.value_length": 16,
                "attention.kv_lora_rank": 48,
                "attention.q_lora_rank": 56,
                "rope.dimension_count": 32,
                "rope.scaling.original_context_length": 16,
            },
        ),
    }


def put(arrays: dict[str, Any], recipe: Recipe, numbers: Any, heads: int, rows: int) -> None:
    """Puts the columns of each head, which are rows of the file, above those of its values."""
    array = arrays.setdefault(recipe.tensor, np.zeros((rows, len(numbers) // heads), np.float32))
    of_head = numbers.reshape(heads, -1, numbers.shape[1])
    array.reshape(heads, recipe.matrix_rows, -1)[:, : numbers.shape[1]] = of_head.swapaxes(1, 2)


def by_head(arrays: dict[str, Any], heads: int) -> dict[str, Any]:
    """The tensors, with one matrix for each head where files have that."""
    return {
        name: array.reshape(heads, -1, array.shape[1])
        if name.endswith(("attn_k_b.weight", "attn_v_b.weight"))
        else array
        for name, array in arrays.items()
    }
