"""Tiny random models that also take images: whole configs, and the logits that transformers gave of text alone.

`tests/families/record_multimodal.py` has transformers make and save each of them with its other parts, and writes the
tensors' names and shapes and the logits to `data/multimodal_logits.json`. Weights are generated from their names.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr_tests import step_models
from mlxr_tests.config_effects import numbers

Config = dict[str, Any]
RECORDED = Path(__file__).parents[2] / "data" / "multimodal_logits.json"
VOCAB = 61
WINDOW = 6

_TEXT: Config = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
}
_YARN: Config = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "rope_theta": 5000.0,
    "llama_4_scaling_beta": 0.3,
}
_SIGLIP: Config = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_PIXTRAL: Config = _SIGLIP | {"model_type": "pixtral", "head_dim": 16}
_QWEN: Config = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_heads": 2,
    "out_hidden_size": 128,
    "patch_size": 14,
}
_DELTA: Config = {
    "rope_parameters": {
        **{"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
        **{"mrope_section": [4, 4, 4], "mrope_interleaved": True},
    },
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "full_attention_interval": 2,
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 4,
}
_IDS: Config = {"image_token_id": 58, "video_token_id": 59, "vision_start_token_id": 56, "vision_end_token_id": 57}


def _gemma4(**text: Any) -> Config:
    turns = ["sliding_attention", "full_attention"] * (text["num_hidden_layers"] // 2)
    return {
        "model_type": "gemma4",
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": _TEXT
        | {
            "model_type": "gemma4_text",
            "hidden_size": 96,
            "head_dim": 32,
            "global_head_dim": 64,
            "sliding_window": WINDOW,
            "layer_types": turns,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "final_logit_softcapping": 30.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
            **text,
        },
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "global_head_dim": 16,
            "patch_size": 4,
            "position_embedding_size": 16,
        },
        "audio_config": None,
        "image_token_id": 58,
        "tie_word_embeddings": True,
    }


CONFIGS: dict[str, Config] = {
    "gemma3": {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": _TEXT
        | {
            "model_type": "gemma3_text",
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 24,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": WINDOW,
        },
        "vision_config": _SIGLIP,
        "mm_tokens_per_image": 4,
        "image_token_index": 58,
        "boi_token_index": 56,
        "eoi_token_index": 57,
    },
    # num_attention_heads, num_key_value_heads and head_dim are left out, as the published folder of 4B does.
    "gemma3, few keys": {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {
            "model_type": "gemma3_text",
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 88,
            "num_hidden_layers": 2,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": _SIGLIP,
        "mm_tokens_per_image": 4,
        "image_token_index": 58,
        "boi_token_index": 56,
        "eoi_token_index": 57,
    },
    "gemma4": _gemma4(attention_k_eq_v=True, num_global_key_value_heads=1, num_hidden_layers=4),
    "gemma4, vectors": _gemma4(
        num_hidden_layers=6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=16,
    ),
    "gemma4, experts": _gemma4(
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        num_hidden_layers=2,
        enable_moe_block=True,
        num_experts=6,
        top_k_experts=2,
        moe_intermediate_size=64,
    ),
    "llama4": {
        "model_type": "llama4",
        "architectures": ["Llama4ForConditionalGeneration"],
        "text_config": _TEXT
        | {
            "model_type": "llama4_text",
            "num_hidden_layers": 5,
            "head_dim": 32,
            "intermediate_size": 40,
            "intermediate_size_mlp": 96,
            "num_local_experts": 5,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 3,
            "attention_bias": False,
            "attention_chunk_size": WINDOW,
            "rms_norm_eps": 1e-6,  # the one that mlx-lm has for queries and keys
            "rope_scaling": None,
            "use_qk_norm": True,
            "no_rope_layers": [],
            "floor_scale": 4,
            "rope_theta": 5000.0,
        },
        "vision_config": {
            "model_type": "llama4_vision_model",
            "hidden_size": 32,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
            "image_size": 28,
            "patch_size": 14,
        },
        "image_token_index": 58,
        "tie_word_embeddings": False,
    },
    "kimi_k25": {
        "model_type": "kimi_k25",
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": {key: value for key, value in _TEXT.items() if key not in ("head_dim", "pad_token_id")}
        | {
            "model_type": "kimi_k2",
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "kv_lora_rank": 48,
            "q_lora_rank": 56,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 16,
            "v_head_dim": 40,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "rope_theta": 5000.0,
            "rope_scaling": {
                key: value for key, value in _YARN.items() if key not in ("rope_theta", "llama_4_scaling_beta")
            },
            "tie_word_embeddings": False,
        },
        "vision_config": {
            "model_type": "kimi_k25_vision",
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "patch_size": 14,
            "pos_emb_height": 4,
            "pos_emb_width": 4,
        },
        "projection_hidden_size": 32,
        "image_token_id": 58,
        "video_token_id": 59,
        "vision_start_token_id": 56,
        "vision_end_token_id": 57,
        "tie_word_embeddings": False,
    },
    # Keys of the text model as published folders have them, which leave its model_type out.
    "minimax_m3_vl": {
        "model_type": "minimax_m3_vl",
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "text_config": _TEXT
        | {
            "head_dim": 32,
            "rope_theta": 5000.0,
            "rotary_dim": 16,
            "partial_rotary_factor": 0.5,
            "hidden_act": "swigluoai",
            "intermediate_size": 40,
            "dense_intermediate_size": 96,
            "shared_intermediate_size": 64,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "routed_scaling_factor": 2.5,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 0.8,
            "use_qk_norm": True,
            "use_gemma_norm": True,
            "moe_layer_freq": [0, 1, 1],
            "sparse_attention_config": {
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 16,
                "sparse_block_size": 8,
                "sparse_topk_blocks": 3,
                "sparse_local_block": 1,
                "sparse_attention_freq": [0, 1, 1],
            },
        },
        "vision_config": {
            "model_type": "minimax_m3_vl_vision",
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        "projector_hidden_size": 32,
        "image_token_index": 58,
        "video_token_index": 59,
        "tie_word_embeddings": False,
    },
    "mistral3": {
        "model_type": "mistral3",
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": _TEXT | {"model_type": "mistral", "rope_theta": 5000.0, "sliding_window": None},
        "vision_config": _PIXTRAL,
        "image_token_index": 58,
        "tie_word_embeddings": False,
    },
    "mistral3, ministral3": {
        "model_type": "mistral3",
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": _TEXT | {"model_type": "ministral3", "rope_parameters": _YARN, "tie_word_embeddings": True},
        "vision_config": _PIXTRAL,
        "image_token_index": 58,
    },
    "qwen3_vl": _IDS
    | {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": _TEXT
        | {
            "model_type": "qwen3_vl_text",
            "rope_theta": 5000.0,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [8, 8, 8], "rope_type": "default"},
        },
        "vision_config": _QWEN
        | {"model_type": "qwen3_vl", "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        "tie_word_embeddings": False,
    },
    "qwen3_vl_moe": _IDS
    | {
        "model_type": "qwen3_vl_moe",
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "text_config": _TEXT
        | {
            "model_type": "qwen3_vl_moe_text",
            "rope_theta": 5000.0,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [8, 8, 8], "rope_type": "default"},
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 96,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [1],
        },
        "vision_config": _QWEN
        | {"model_type": "qwen3_vl_moe", "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        "tie_word_embeddings": False,
    },
    "qwen3_5": _IDS
    | {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": _TEXT | _DELTA | {"model_type": "qwen3_5_text"},
        "vision_config": _QWEN | {"model_type": "qwen3_5_vision", "num_position_embeddings": 16},
        "tie_word_embeddings": False,
    },
    "qwen3_5_moe": _IDS
    | {
        "model_type": "qwen3_5_moe",
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": {key: value for key, value in _TEXT.items() if key != "intermediate_size"}
        | _DELTA
        | {
            "model_type": "qwen3_5_moe_text",
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 96,
            "shared_expert_intermediate_size": 96,
        },
        "vision_config": _QWEN | {"model_type": "qwen3_5_moe_vision", "num_position_embeddings": 16},
        "tie_word_embeddings": False,
    },
    "qwen2_5_vl": _IDS
    | {
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "text_config": {key: value for key, value in _TEXT.items() if key != "head_dim"}
        | {
            "model_type": "qwen2_5_vl_text",
            "rope_theta": 5000.0,
            "rope_scaling": {"mrope_section": [4, 6, 6], "type": "mrope"},
            "use_sliding_window": False,
        },
        "vision_config": _QWEN | {"model_type": "qwen2_5_vl", "fullatt_block_indexes": [0]},
        "tie_word_embeddings": False,
    },
    "step3p7": step_models.wrapped(_TEXT),
}
"""Cases by name; the text before the comma is the whole's `model_type`."""


class Recorded(NamedTuple):
    """What transformers made of a case."""

    reference: str
    shapes: dict[str, list[int]]
    """Of all tensors that it saved, by their names."""
    logits: list[float]
    """After the last token of the first of the prompts."""


def weights(case: str, shapes: dict[str, list[int]]) -> dict[str, npt.NDArray[np.float32]]:
    """All weights of a model."""
    around = 0.0 if case.startswith(("gemma3", "minimax_m3", "qwen3_5")) else 1.0
    return {name: numbers(name, tuple(shape), around) for name, shape in shapes.items()}


def load_recorded() -> dict[str, Recorded]:
    """The recorded results of all cases."""
    return {case: Recorded(**entry) for case, entry in json.loads(RECORDED.read_text()).items()}
