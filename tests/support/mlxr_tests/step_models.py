"""Tiny models of Step-3.5: configs for mlx-lm, and metadata of GGUF files."""

from typing import Any

Config = dict[str, Any]
_WINDOW = 6
_LLAMA3: Config = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_STEP: Config = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_attention_groups": 2,
    "num_key_value_heads": None,
    "head_dim": 32,
    "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 3},
    # Layers that guess further tokens are last.
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "full_attention"],
    "rope_theta": [5000.0, 100.0, 100.0, 5000.0, 5000.0],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 0.5],
    "yarn_only_types": ["full_attention"],
    "sliding_window": _WINDOW,
    "use_head_wise_attn_gate": True,
    "moe_num_experts": 5,
    "moe_top_k": 2,
    "moe_intermediate_size": 40,
    "share_expert_dim": 56,
    "moe_layers_enum": "1, 2,3",
    "moe_router_scaling_factor": 2.5,
    "norm_expert_weight": True,
    "swiglu_limits": [None, 0.0, 0.5, 0.5, 0.0],
    "swiglu_limits_shared": [0.7, 0.0, 0.0, 0.7, 0.0],
}
STEP: dict[str, Config] = {
    "step3p5": _STEP,
    "step3p5, scaled": _STEP | {"rope_scaling": _LLAMA3, "swiglu_limits": None, "swiglu_limits_shared": [0.0] * 4},
}
"""Cases of family_models."""
EFFECTS = {key: value for key, value in _STEP.items() if key != "num_hidden_layers"}
"""What differs from the common base of config_effects."""


def wrapped(text: Config) -> Config:
    """The text model with images, as transformers has it.

    Args:
        text: keys that all text models share.
    """
    other = {"num_attention_heads": 6, "num_attention_groups": 2}
    own = {"model_type": "step3p5", "rope_scaling": _LLAMA3, "attention_other_setting": other}
    return {
        "model_type": "step3p7",
        "architectures": ["Step3p7ForConditionalGeneration"],
        "text_config": text | _STEP | own | {"num_key_value_heads": 2, "num_nextn_predict_layers": 1},
        "vision_config": {
            "model_type": "step3p5_vision",
            "width": 32,
            "layers": 1,
            "heads": 2,
            "image_size": 56,
            "patch_size": 14,
        },
        "image_token_id": 58,
        "tie_word_embeddings": False,
    }


_METADATA = {
    "attention.head_count": [8, 6, 6, 8],
    "attention.head_count_kv": [2, 3, 3, 2],
    "attention.sliding_window": _WINDOW,
    "attention.sliding_window_pattern": [False, True, True, False],
    # Of which layers without a window rotate half.
    "rope.dimension_count": 32,
    "rope.freq_base": 5000.0,
    "rope.freq_base_swa": 100.0,
    "expert_count": 5,
    "expert_used_count": 2,
    "expert_feed_forward_length": 40,
    "expert_shared_feed_forward_length": 56,
    "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
    "leading_dense_block_count": 1,
    "swiglu_clamp_exp": [0.0, 0.0, 0.5, 0.5],
    "swiglu_clamp_shexp": [0.7, 0.0, 0.0, 0.7],
}
GGUF: dict[str, tuple[str, str, Config]] = {"step3p5": ("step3p5", "step35", _METADATA)}
"""Cases of family_gguf."""
