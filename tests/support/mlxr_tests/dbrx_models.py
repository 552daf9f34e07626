"""Tiny models of DBRX: configs for mlx-lm and transformers, and metadata of GGUF files."""

from typing import Any

Config = dict[str, Any]
_DBRX: Config = {
    "d_model": 128,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 64,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.7, "rope_theta": 5000.0},
    "ffn_config": {
        "ffn_act_fn": {"name": "silu"},
        "ffn_hidden_size": 40,
        "moe_num_experts": 5,
        "moe_top_k": 2,
        "moe_normalize_expert_weights": 1.0,
    },
}
DBRX: dict[str, Config] = {"dbrx": _DBRX | {"layer_norm_eps": 1e-5}}
"""Cases of family_models; the last key is for tests, which write it into GGUF files."""

_OTHERWISE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_NONE = ("head_dim", "max_position_embeddings", "rms_norm_eps")


def base(num_layers: int) -> Config:
    """What differs from the common base of config_effects."""
    return dict.fromkeys((*_OTHERWISE, *_NONE)) | _DBRX | {"n_layers": num_layers}


EFFECTS: dict[str, list[Any]] = {
    "attn_config.attn_pdrop": [0.5],
    "attn_config.clip_qkv": [0.3, None],
    "attn_config.kv_n_heads": [4],
    "attn_config.rope_theta": [100.0],
    "ffn_config.ffn_act_fn": [{"name": "gelu"}, {"name": "relu"}, None],
    "ffn_config.ffn_hidden_size": [48],
    "ffn_config.moe_normalize_expert_weights": [None, 2.0],
    "ffn_config.moe_num_experts": [4],
    "ffn_config.moe_top_k": [3],
}
"""Values of keys in sections, of config_effects."""

GGUF: dict[str, tuple[str, str, Config]] = {
    "dbrx": (
        "dbrx",
        "dbrx",
        {
            "feed_forward_length": 40,
            "attention.clamp_kqv": 0.7,
            "attention.layer_norm_epsilon": 1e-5,
            "expert_count": 5,
            "expert_used_count": 2,
        },
    )
}
"""Cases of family_gguf."""
