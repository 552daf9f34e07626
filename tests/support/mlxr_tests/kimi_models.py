"""Tiny models of Kimi Linear: configs for mlx-lm and transformers, and metadata of GGUF files."""

from typing import Any

Config = dict[str, Any]

_SIZES: Config = {
    "vocab_size": 61,
    "hidden_size": 96,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "rope_theta": 5000.0,
    # mlx-lm's norm of latents has the epsilon of all others, that of transformers this one.
    "rms_norm_eps": 1e-6,
    "model_max_length": 512,
    "tie_word_embeddings": False,
    "linear_attn_config": {
        "full_attn_layers": [3],
        "kda_layers": [1, 2, 4],
        "head_dim": 24,
        "num_heads": 8,
        "short_conv_kernel_size": 4,
    },
    "kv_lora_rank": 48,
    "q_lora_rank": None,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 40,
    "mla_use_nope": True,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 40,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True,
    "routed_scaling_factor": 2.5,
    "use_grouped_topk": True,
    "num_expert_group": 1,
    "topk_group": 1,
}
KIMI: dict[str, Config] = {"kimi_linear": _SIZES}
"""Cases of family_models."""

GGUF: dict[str, tuple[str, str, Config]] = {
    "kimi_linear": (
        "kimi_linear",
        "kimi-linear",
        {
            "context_length": 512,
            "attention.head_count_kv": [0, 0, 1, 0],
            "attention.key_length": 64,
            "attention.value_length": None,
            "attention.key_length_mla": 40,
            "attention.value_length_mla": 40,
            "attention.kv_lora_rank": 48,
            "rope.dimension_count": 16,
            "ssm.conv_kernel": 4,
            "kda.head_dim": 24,
            "leading_dense_block_count": 1,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
            "expert_shared_count": 1,
            "expert_weights_scale": 2.5,
            "expert_gating_func": 2,
        },
    ),
}
"""Cases of family_gguf."""

_LISTS: Config = {"full_attn_layers": [3], "kda_layers": [1, 2, 4]}
_LINEAR: Config = _LISTS | {"head_dim": 24, "num_heads": 8, "short_conv_kernel_size": 3}
EFFECTS: Config = {
    **dict.fromkeys(("rope_theta", "head_dim", "max_position_embeddings")),
    "model_max_length": 64,
    "num_key_value_heads": 4,
    "linear_attn_config": _LINEAR,
    "kv_lora_rank": 48,
    "q_lora_rank": None,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 40,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 40,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_shared_experts": 2,
    "moe_renormalize": True,
    "routed_scaling_factor": 2.5,
    "num_expert_group": 4,
    "topk_group": 2,
}
"""The base of config_effects."""
VALUES: dict[str, list[Any]] = {
    "layer_types": [["linear_attention"] * 2 + ["full_attention", "linear_attention"], ["linear_attention"] * 4],
    "linear_attn_config": [
        _LINEAR | {"kda_layers": [1, 2, 3, 4]},
        _LINEAR | {"full_attn_layers": [3, 4], "kda_layers": [1, 2]},
        _LINEAR | {"num_heads": 4},
        _LINEAR | {"head_dim": 32},
        _LINEAR | {"short_conv_kernel_size": 4},
        {key: value for key, value in _LINEAR.items() if key not in _LISTS},
        _LINEAR | {"full_attn_layers": [3, 4]},
        {key: value for key, value in _LINEAR.items() if key != "full_attn_layers"},
        _LISTS,
    ],
    "linear_conv_kernel_dim": [4],
    "linear_head_dim": [32],
    "linear_num_heads": [4],
    "mla_use_nope": [True, False],
    "model_max_length": [48],
    "moe_layer_freq": [1, 2],
    "moe_renormalize": [False],
    "moe_router_activation_func": ["sigmoid", "softmax"],
    "num_expert_group": [1, 2],
    "num_experts_per_token": [2],
    "q_lora_rank": [56],
    "use_grouped_topk": [True, False],
}
"""Values that the family is tried with in config_effects."""
