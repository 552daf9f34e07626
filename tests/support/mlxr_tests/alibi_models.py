"""Tiny models whose scores have biases by distance (ALiBi): configs for transformers, and metadata of GGUF files.

Six heads: of a number that is no power of two, some slopes lie between the others'.
"""

from typing import Any

Config = dict[str, Any]
_NONE = dict.fromkeys(("head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta"))
_SIZES: Config = {"hidden_size": 192, "num_attention_heads": 6, "intermediate_size": 768, "layer_norm_epsilon": 1e-5}


def families(num_layers: int) -> dict[str, Config]:
    """What differs from the common base of config_effects."""
    bloom = _NONE | _SIZES | {"tie_word_embeddings": True}
    attention: Config = {"alibi": True, "alibi_bias_max": 8, "clip_qkv": 0.7, "softmax_scale": None, "qk_ln": False}
    named = {"d_model": 192, "n_heads": 6, "n_layers": num_layers, "max_seq_len": 64, "expansion_ratio": 4}
    return {"bloom": bloom, "mpt": bloom | named | {"attn_config": attention, "no_bias": True}}


EFFECTS: dict[str, list[Any]] = {
    "attn_config.alibi": [False],
    "attn_config.alibi_bias_max": [4],
    "attn_config.attn_pdrop": [1],
    "attn_config.clip_qkv": [0.3, None],
    "attn_config.softmax_scale": [0.3],
}
"""Values of MPT's keys of attention, of config_effects."""
OF_MPT = ("expansion_ratio", "logit_scale", "no_bias", "attn_config.alibi", "attn_config.alibi_bias_max")
"""Keys that transformers does not read, and MPT's own code does."""

_LAYER_NORM = {"attention.layer_norm_epsilon": 1e-5}
GGUF: dict[str, tuple[str, str, Config]] = {
    "baichuan, 40 layers": ("llama, 40 layers", "baichuan", {}),
    "bloom": ("transformers, bloom", "bloom", _LAYER_NORM),
    "mpt": (
        "transformers, mpt",
        "mpt",
        _LAYER_NORM | {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 0.7},
    ),
}
"""Cases of family_gguf. As many layers as Baichuan 13B has, by which its files tell what they are."""
