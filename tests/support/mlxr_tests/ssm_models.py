"""Tiny models with Mamba-2 layers, for `family_models` and `family_gguf`."""

from typing import Any

Config = dict[str, Any]

MAMBA2: Config = {
    "num_heads": 6,
    "head_dim": 16,
    "hidden_size": 48,
    "state_size": 20,
    "n_groups": 1,
    "conv_kernel": 4,
    "expand": 2,
    "layer_norm_epsilon": 1e-5,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_limit": [0.01, 0.9],
    "time_step_rank": 6,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
}
NEMOTRON: Config = {
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "attention_bias": False,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "mamba_proj_bias": False,
    "ssm_state_size": 24,
    "n_groups": 3,
    "conv_kernel": 4,
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-4,
    "use_bias": False,
    "use_conv_bias": True,
    "hybrid_override_pattern": "M*-M",
    "num_hidden_layers": 4,
}
EXPERTS: Config = {
    "hybrid_override_pattern": "ME*E",
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 56,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
GRANITE: Config = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.05,
    "logits_scaling": 4.0,
    "residual_multiplier": 0.3,
    "attention_bias": False,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "layer_types": ["mamba", "attention", "mamba"],
    "num_hidden_layers": 3,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 24,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "num_local_experts": 0,
    "shared_intermediate_size": 88,
    "intermediate_size": 88,
    "position_embedding_type": "nope",
    "time_step_limit": [0.001, 100.0],
}
CONFIGS: dict[str, Config] = {
    "mamba2": MAMBA2,
    "nemotron_h": NEMOTRON,
    "nemotron_h, experts": NEMOTRON | EXPERTS,
    "granitemoehybrid, mamba": GRANITE,
    "granitemoehybrid, mamba and experts": GRANITE
    | {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40, "shared_intermediate_size": 72},
}
