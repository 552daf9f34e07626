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
# mlx-lm leaves out the factor of keys, and has multiplied what other factors say.
FALCON: Config = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 24,
    "mamba_d_conv": 4,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "mamba_rms_norm": False,
    "mamba_norm_before_gate": False,
    "mamba_use_mlp": True,
    "projectors_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 1.25,
    "key_multiplier": 1.0,
    "ssm_in_multiplier": 0.625,
    "ssm_out_multiplier": 1.375,
    "mlp_multipliers": [0.875, 1.125],
    "ssm_multipliers": [0.5, 0.75, 1.25, 1.5, 0.8],
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.25,
    "tie_word_embeddings": False,
}
_GRANITE = {
    "attention.scale": 0.05,
    "embedding_scale": 3.0,
    "residual_scale": 0.3,
    "logit_scale": 4.0,
    "attention.head_count_kv": [0, 1, 0],
    "rope.scaling.finetuned": False,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 1,
    "ssm.inner_size": 128,
    "ssm.time_step_rank": 8,
    "ssm.state_size": 24,
}
_NEMOTRON = {
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 3,
    "ssm.inner_size": 96,
    "ssm.time_step_rank": 6,
    "ssm.state_size": 24,
}
GGUF: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mamba2": (
        "mamba2",
        "mamba2",
        {
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.key_length": None,
            "attention.value_length": None,
            "attention.head_count": 0,
            "attention.head_count_kv": 0,
            "feed_forward_length": 0,
            "ssm.conv_kernel": 4,
            "ssm.group_count": 1,
            "ssm.inner_size": 96,
            "ssm.time_step_rank": 6,
            "ssm.state_size": 20,
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        "nemotron_h",
        _NEMOTRON | {"attention.head_count_kv": [0, 2, 0, 0], "feed_forward_length": [0, 0, 88, 0]},
    ),
    "nemotron_h, experts": (
        "nemotron_h, experts",
        "nemotron_h_moe",
        _NEMOTRON
        | {
            "attention.head_count_kv": [0, 0, 2, 0],
            "feed_forward_length": [0, 40, 0, 40],
            "expert_count": 5,
            "expert_used_count": 2,
            "expert_feed_forward_length": 40,
            "expert_shared_feed_forward_length": 56,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "expert_group_count": 1,
        },
    ),
    "granitemoehybrid": ("granitemoehybrid, mamba", "granitehybrid", _GRANITE),
    "granitemoehybrid, experts": (
        "granitemoehybrid, mamba and experts",
        "granitehybrid",
        _GRANITE | {"expert_count": 5, "expert_used_count": 2, "expert_shared_feed_forward_length": 72},
    ),
    "falcon_h1": (
        "falcon_h1",
        "falcon-h1",
        {
            "ssm.conv_kernel": 4,
            "ssm.group_count": 1,
            "ssm.inner_size": 96,
            "ssm.time_step_rank": 6,
            "ssm.state_size": 24,
        },
    ),
}
"""Cases as those of `family_gguf`."""


def as_in_gguf(name: str, array: Any, metadata: Config) -> Any:
    """A tensor as llama.cpp's converter shapes it: a matrix of one row is a vector, but not what belongs to a scan.

    Gated delta nets have some in other shapes.
    """
    groups = metadata.get("ssm.group_count", 1)
    if "full_attention_interval" in metadata:
        return array.reshape(-1, 4) if name.endswith("ssm_conv1d.weight") else array.squeeze()
    if "kda.head_dim" in metadata and "ssm_" in name:
        filters = array.reshape(1, -1, 1, metadata["ssm.conv_kernel"]) if "ssm_conv1d_" in name else array
        return array.reshape(1, 1, -1, 1) if name.endswith("ssm_a") else filters
    if name.endswith(("ssm_a", "ssm_d")):
        return array.reshape(-1, 1)
    if name.endswith("ssm_norm.weight"):
        return array.reshape(groups, -1)
    return array.reshape(-1, 4) if name.endswith("ssm_conv1d.weight") else array.squeeze()


CONFIGS: dict[str, Config] = {
    "mamba2": MAMBA2,
    "nemotron_h": NEMOTRON,
    "nemotron_h, experts": NEMOTRON | EXPERTS,
    "granitemoehybrid, mamba": GRANITE,
    "falcon_h1": FALCON,
    "falcon_h1, joined": FALCON | {"mamba_n_heads": 8, "mamba_d_ssm": 128},
    "falcon_h1, tied": FALCON | {"tie_word_embeddings": True, "mamba_rms_norm": True},
    "granitemoehybrid, mamba and experts": GRANITE
    | {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40, "shared_intermediate_size": 72},
}
