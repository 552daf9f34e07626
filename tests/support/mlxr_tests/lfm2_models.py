"""Tiny models of LFM2: configs for mlx-lm, and metadata of GGUF files."""

from typing import Any

Config = dict[str, Any]

_LFM2: Config = {
    "num_hidden_layers": 5,
    "norm_eps": 1e-4,
    "conv_bias": False,
    "conv_L_cache": 3,
    "rope_theta": 5000.0,
    "tie_word_embeddings": True,
    "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
}
# 2/3 of 100 without its fraction, times 1.3 likewise, are 85; the next multiple of 8 is 88.
_DENSE: Config = _LFM2 | {
    "block_dim": 128,
    "block_ff_dim": 100,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.3,
    "block_auto_adjust_ff_dim": True,
}
_MOE: Config = _LFM2 | {
    "moe_intermediate_size": 40,
    "num_dense_layers": 2,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "use_expert_bias": True,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
LFM2: dict[str, Config] = {
    "lfm2": _DENSE,
    "lfm2, biases": _DENSE | {"conv_bias": True, "conv_L_cache": 4, "full_attn_idxs": [2, 4], "layer_types": None},
    "lfm2_moe": _MOE,
    "lfm2_moe, no scale": _MOE | {"routed_scaling_factor": 1.0},
}
"""Cases of family_models."""

_METADATA: Config = {
    "feed_forward_length": 88,
    "attention.head_count_kv": [0, 0, 2, 0, 2],
    "attention.layer_norm_rms_epsilon": 1e-4,
    "shortconv.l_cache": 3,
}
GGUF: dict[str, tuple[str, str, Config]] = {
    "lfm2": ("lfm2", "lfm2", _METADATA),
    "lfm2_moe": (
        "lfm2_moe, no scale",
        "lfm2moe",
        _METADATA
        | {
            "leading_dense_block_count": 2,
            "expert_count": 6,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
            "expert_gating_func": 2,
        },
    ),
}
"""Cases of family_gguf."""
