"""Tiny models of Qwen 3 Next, 3.5 and 3.6: configs for mlx-lm, and metadata of GGUF files."""

from typing import Any

Config = dict[str, Any]

_SIZES: Config = {
    "vocab_size": 61,
    "hidden_size": 96,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "full_attention_interval": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 4,
}
_ROTATED: Config = {
    "rope_parameters": {
        **{"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
        **{"mrope_section": [3, 3, 2], "mrope_interleaved": True},
    },
}
_EXPERTS: Config = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "decoder_sparse_step": 1,
}
_NEXT: Config = {"rope_theta": 5000.0, "partial_rotary_factor": 0.5, "mlp_only_layers": [], "norm_topk_prob": True}
# Files of llama.cpp have values as wide as keys.
_SQUARE: Config = {"linear_value_head_dim": 24, "linear_num_value_heads": 4, "linear_num_key_heads": 2}
_SQUARE |= {"full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"] * 2}


def _text(kind: str, config: Config) -> Config:
    return {"text_config": config | {"model_type": kind}, "tie_word_embeddings": config["tie_word_embeddings"]}


QWEN_DELTA: dict[str, Config] = {
    "qwen3_5": _text("qwen3_5_text", _SIZES | _ROTATED),
    "qwen3_5, square": _text("qwen3_5_text", _SIZES | _ROTATED | _SQUARE),
    "qwen3_5_moe": _text("qwen3_5_moe_text", _SIZES | _ROTATED | _EXPERTS),
    "qwen3_5_moe, square": _text("qwen3_5_moe_text", _SIZES | _ROTATED | _EXPERTS | _SQUARE),
    "qwen3_next": _SIZES | _NEXT | _EXPERTS,
    "qwen3_next, square": _SIZES | _NEXT | _EXPERTS | _SQUARE | {"mlp_only_layers": []},
    "qwen3_next, a dense layer": _SIZES | _NEXT | _EXPERTS | {"mlp_only_layers": [1]},
}
"""Cases of family_models."""

_METADATA: Config = {
    "feed_forward_length": 88,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "rope.freq_base": 5000.0,
    "rope.dimension_count": 16,
    "full_attention_interval": 2,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 4 * 24,
    "ssm.state_size": 24,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
}
_MIXTURE: Config = {
    "expert_count": 5,
    "expert_used_count": 2,
    "expert_feed_forward_length": 40,
    "expert_shared_feed_forward_length": 56,
}
_SECTIONS: Config = {"rope.dimension_sections": [3, 3, 2, 0]}
GGUF: dict[str, tuple[str, str, Config]] = {
    "qwen3_5": ("qwen3_5, square", "qwen35", _METADATA | _SECTIONS),
    "qwen3_5_moe": ("qwen3_5_moe, square", "qwen35moe", _METADATA | _SECTIONS | _MIXTURE),
    "qwen3_next": ("qwen3_next, square", "qwen3next", _METADATA | _MIXTURE),
}
"""Cases of family_gguf."""
