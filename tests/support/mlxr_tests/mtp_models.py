"""Tiny models with a head of their own that guesses further tokens, whose guesses transformers recorded.

`tests/families/record_mtp.py` records; a model's weights follow from the names and shapes of its tensors.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mlxr_tests.multimodal_models import numbers

Config = dict[str, Any]
RECORDED = Path(__file__).parents[2] / "data" / "mtp_logits.json"
NUM_GUESSES = 3
NUM_LAYERS = 2
_BASE: Config = {
    "vocab_size": 61,
    "hidden_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "tie_word_embeddings": False,
    "intermediate_size": 88,
    "moe_intermediate_size": 40,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}
CONFIGS: dict[str, Config] = {
    "glm4_moe": _BASE
    | {
        "model_type": "glm4_moe",
        "architectures": ["Glm4MoeForCausalLM"],
        "num_key_value_heads": 2,
        "head_dim": 32,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": True,
    },
    "deepseek_v3": _BASE
    | {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "q_lora_rank": 40,
        "kv_lora_rank": 48,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 40,
    },
}

CONFIGS["qwen3_next"] = {
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "tie_word_embeddings": False,
    "intermediate_size": 88,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 48,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
"""Of Qwen's, the head's tensors are under `mtp`, and its norms are held as their distance from 1."""


@dataclass(frozen=True)
class Recorded:
    """What transformers gave.

    Attributes:
        reference: its version.
        shapes: of the tensors in files, by name.
        logits: of each guess after `prompt`: of the text, then of the text and the guesses before.
    """

    reference: str
    shapes: dict[str, list[int]]
    logits: list[list[float]]


def prompt() -> list[int]:
    """The text, with the token that the model chose last."""
    return [int(token) for token in np.random.RandomState(5).randint(1, _BASE["vocab_size"], 13)]


def weights(shapes: dict[str, list[int]]) -> dict[str, npt.NDArray[np.float32]]:
    """All weights of a model."""
    around = 0.0 if any(name.startswith("mtp.") for name in shapes) else 1.0
    return {name: numbers(name, tuple(shape), around) for name, shape in shapes.items()}


def save(case: str, folder: Path) -> Path:
    """The folder, with a model in it."""
    save_file(weights(load_recorded()[case].shapes), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIGS[case]))
    return folder


def load_recorded() -> dict[str, Recorded]:
    """The recorded results of all cases."""
    return {case: Recorded(**entry) for case, entry in json.loads(RECORDED.read_text()).items()}
