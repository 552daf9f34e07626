"""Configs of tiny Gemma 4 models: a dense one, one with vectors of layers and shared keys, one with experts."""

from typing import Any

Config = dict[str, Any]

_GEMMA4: Config = {
    "hidden_size": 96,
    "head_dim": 32,
    "global_head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
    "vocab_size_per_layer_input": 61,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "attention_k_eq_v": False,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
GEMMA_4: dict[str, Config] = {
    "gemma4_text": _GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "gemma4_text, vectors": _GEMMA4
    | {
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 16,
    },
    "gemma4_text, experts": _GEMMA4
    | {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 2,
        "moe_intermediate_size": 40,
    },
}
"""Cases of `family_models` by name."""

_FILE: Config = {
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.key_length_swa": 32,
    "attention.value_length_swa": 32,
    "rope.dimension_count": 64,
    "rope.dimension_count_swa": 32,
    "rope.freq_base": 5000.0,
    "rope.freq_base_swa": 100.0,
    "attention.sliding_window": 6,
    "attention.sliding_window_pattern": [True, False],
    "attention.shared_kv_layers": 0,
    "embedding_length_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}
GGUF: dict[str, tuple[str, str, Config]] = {
    "gemma4_text": ("gemma4_text", "gemma4", _FILE | {"attention.head_count_kv": [2, 1]}),
    "gemma4_text, vectors": (
        "gemma4_text, vectors",
        "gemma4",
        _FILE
        | {
            "attention.sliding_window_pattern": [True, True, False] * 2,
            "attention.shared_kv_layers": 3,
            "embedding_length_per_layer_input": 16,
            "feed_forward_length": [88, 88, 88, 176, 176, 176],
        },
    ),
    "gemma4_text, experts": (
        "gemma4_text, experts",
        "gemma4",
        _FILE
        | {
            "attention.head_count_kv": [2, 1],
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 40,
        },
    ),
}
"""Cases of `family_gguf` by name."""
DIVISORS = [1.0] * 8 + [1e30] * 24
"""What files divide the frequencies of whole layers by: pairs with 1e30 rest."""
