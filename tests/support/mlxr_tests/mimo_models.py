"""Tiny models of MiMo-V2: configs for mlx-lm, and metadata of GGUF files."""

from typing import Any

Config = dict[str, Any]
_WINDOW = 6

_MIMO: Config = {
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 48,
    "v_head_dim": 32,
    "partial_rotary_factor": 0.334,
    "swa_num_attention_heads": 6,
    "swa_num_key_value_heads": 3,
    "swa_head_dim": 48,
    "swa_v_head_dim": 32,
    "swa_rope_theta": 100.0,
    "hybrid_layer_pattern": [0, 1, 1, 0],
    "moe_layer_freq": [0, 1, 0, 1],
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "sliding_window_size": 64,
    "attention_value_scale": 0.6,
    "layernorm_epsilon": 1e-4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": None,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
MIMO_V2: dict[str, Config] = {
    "mimo_v2_flash": _MIMO,
    "mimo_v2_flash, long values": _MIMO | {"v_head_dim": 56, "swa_v_head_dim": 56, "attention_value_scale": None},
}
"""Cases of family_models."""

_METADATA = {
    "attention.head_count": [4, 6, 6, 4],
    "attention.head_count_kv": [1, 3, 3, 1],
    "attention.value_length": 32,
    "attention.value_scale": 0.6,
    "attention.sliding_window": _WINDOW,
    "attention.sliding_window_pattern": [False, True, True, False],
    "attention.layer_norm_rms_epsilon": 1e-4,
    "rope.dimension_count": 16,
    "rope.freq_base_swa": 100.0,
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_feed_forward_length": 40,
    "expert_gating_func": 2,
}
GGUF: dict[str, tuple[str, str, Config]] = {
    "mimo_v2_flash": ("mimo_v2_flash", "mimo2", _METADATA),
    "mimo_v2_flash, long values": (
        "mimo_v2_flash, long values",
        "mimo2",
        _METADATA | {"attention.value_length": 56, "attention.value_scale": 1.0},
    ),
}
"""Cases of family_gguf."""
