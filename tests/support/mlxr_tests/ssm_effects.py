"""What the config.json keys of models with Mamba-2 layers are, and are changed to; see `mlxr_tests.config_effects`."""

from typing import Any

Config = dict[str, Any]

_NONE: Config = dict.fromkeys(("rms_norm_eps", "rope_theta"))
_MAMBA: Config = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
BASES: dict[str, Config] = {
    "mamba2": _NONE
    | dict.fromkeys(("intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"))
    | {
        "num_heads": 8,
        "head_dim": 32,
        "state_size": 16,
        "n_groups": 2,
        "conv_kernel": 4,
        "expand": 2,
        "chunk_size": 8,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": [0.01, 0.9],
    },
    "nemotron_h": _NONE
    | {
        "layers_block_type": ["mamba", "moe", "attention", "mlp"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "n_groups": 2,
        "conv_kernel": 4,
        "chunk_size": 8,
        "layer_norm_epsilon": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "use_bias": False,
        "use_conv_bias": True,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 56,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_hidden_layers": 4,
    },
    "granitemoehybrid": _MAMBA
    | {
        "head_dim": None,
        "logits_scaling": 4.0,
        "attention_multiplier": 0.05,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "mamba_n_groups": 1,
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 40,
        "shared_intermediate_size": 56,
        "position_embedding_type": "rope",
    },
    "falcon_h1": _MAMBA
    | {
        "mamba_d_ssm": 256,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
        "projectors_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_in_multiplier": 0.8,
        "attention_out_multiplier": 1.25,
        "key_multiplier": 0.7,
        "ssm_in_multiplier": 0.625,
        "ssm_out_multiplier": 1.375,
        "mlp_multipliers": [0.875, 1.125],
        "ssm_multipliers": [0.5, 0.75, 1.25, 1.5, 0.8],
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.25,
    },
}
"""The keys in which each family's base differs from the common base; null removes a key."""
_PATTERN = ["mamba", "moe", "mamba", "mlp"]
VALUES: dict[str, dict[str, list[Any]]] = {
    "mamba2": {
        "time_step_limit": [[0.0, "inf"], [0.3, 0.4], None],
        "use_bias": [True],
        "time_step_min": [0.2],
        "rms_norm": [False],
    },
    "nemotron_h": {
        "layers_block_type": [_PATTERN, ["mamba", "attention"]],
        "hybrid_override_pattern": ["M*-E"],
        "mlp_hidden_act": ["silu", "relu", "gelu"],
        "mamba_hidden_act": ["relu"],
        "time_step_min": [0.7],
        "time_step_limit": [[0.3, 0.4]],
        "moe_latent_size": [32],
    },
    "granitemoehybrid": {
        "layer_types": [["attention", "mamba", "mamba", "mamba"], ["mamba"] * 4],
        "position_embedding_type": ["nope", None],
        "time_step_limit": [[0.3, 0.4]],
        "time_step_min": [0.7],
    },
    "falcon_h1": {
        "mamba_norm_before_gate": [True],
        "mamba_rms_norm": [False],
        "mamba_use_mlp": [False],
        "key_multiplier": [0.3, None],
        "mlp_multipliers": [[0.5, 1.125], [0.875, 0.5], None],
        "ssm_multipliers": [[0.25, 0.75, 1.25, 1.5, 0.8], [0.5, 0.75, 1.25, 1.5, 0.4], None],
        "ssm_in_multiplier": [0.3],
        "ssm_out_multiplier": [0.3],
        "attention_in_multiplier": [0.3],
        "attention_out_multiplier": [0.3],
        "lm_head_multiplier": [0.5],
        "time_step_limit": [[0.3, 0.4]],
    },
}
"""Values that a family is tried with beside those of every family."""
