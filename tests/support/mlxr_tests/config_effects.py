"""The effect of each key of config.json in each family's reference code: the cases, and the recorded results.

`tests/families/record_config_effects.py` runs transformers (mlx-lm for the families that transformers lacks) on tiny
models whose config.json differs from a base in one key, and writes the results to `data/config_effects.json`.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr_tests import alibi_models, dbrx_models, indexer_effects, kimi_models, latent_effects, ssm_effects, step_models
from mlxr_tests.effect_values import LLAMA3, NUM_LAYERS, PARAMETERS, TURNS, VALUES, YARN

Config = dict[str, Any]
RECORDED = Path(__file__).parents[2] / "data" / "config_effects.json"
VOCAB = 61
WINDOW = 6
NUM_LOGITS = 6
"""How many of the last token's logits are recorded."""
EFFECT = 1e-5
"""A relative difference of logits above this is an effect."""

_BASE: Config = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 88,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
_EXPERTS: Config = {"num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True}
_GROUPS: Config = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
_GRANITE: Config = {
    "logits_scaling": 4.0,
    "attention_multiplier": 0.05,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
}
_CONV: Config = dict.fromkeys(("head_dim", "rms_norm_eps")) | {
    "norm_eps": 1e-5,
    "conv_L_cache": 3,
    "conv_bias": False,
    "tie_word_embeddings": True,
    "layer_types": ["conv", "full_attention"] * (NUM_LAYERS // 2),
}
_DELTA: Config = {
    "rope_theta": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
    "layer_types": ["linear_attention", "full_attention"] * (NUM_LAYERS // 2),
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 3,
}
_SHARED: Config = {"moe_intermediate_size": 40, "shared_expert_intermediate_size": 56}
_WINDOWS: Config = {"layer_types": TURNS, "sliding_window": WINDOW}
_LAYER_NORM: Config = {"layer_norm_eps": 1e-5, "rms_norm_eps": None}
_GEMMA: Config = {"query_pre_attn_scalar": 24, "hidden_activation": "gelu_pytorch_tanh"}
_ALPHA: Config = {"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0}

_GPT2: Config = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")),
    **dict.fromkeys(("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta")),
    "n_embd": 128,
    "n_inner": 88,
    "n_layer": NUM_LAYERS,
    "n_head": 4,
    "n_positions": 64,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}

FAMILIES: dict[str, Config] = {
    "afmoe": {
        "moe_intermediate_size": 40,
        "num_dense_layers": 1,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "num_shared_experts": 2,
        "route_scale": 2.5,
        "sliding_window": WINDOW,
        "mup_enabled": True,
    },
    **alibi_models.families(NUM_LAYERS),
    "apertus": {"hidden_act": "xielu", "head_dim": None, "rope_scaling": LLAMA3},
    "cohere": _LAYER_NORM | {"logit_scale": 0.25, "tie_word_embeddings": True, "head_dim": None},
    "cohere2": _LAYER_NORM | _WINDOWS | {"logit_scale": 0.25, "tie_word_embeddings": True, "head_dim": None},
    "dbrx": dbrx_models.base(NUM_LAYERS),
    **latent_effects.families(_GROUPS, YARN, NUM_LAYERS),
    "dots1": _GROUPS | {"sliding_window": WINDOW, "max_window_layers": NUM_LAYERS},
    "ernie4_5": {},
    "ernie4_5_moe": {
        "head_dim": None,
        "moe_num_experts": 6,
        "moe_k": 2,
        "moe_intermediate_size": 40,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 2,
    },
    "exaone4": _WINDOWS,
    "exaone_moe": _WINDOWS
    | {key: value for key, value in _GROUPS.items() if key not in ("n_routed_experts", "n_shared_experts")}
    | {"num_experts": 8, "num_shared_experts": 2},
    "falcon": {
        **dict.fromkeys(("intermediate_size", "head_dim", "rms_norm_eps", "num_key_value_heads")),
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "ffn_hidden_size": 88,
        "layer_norm_epsilon": 1e-5,
        "activation": "gelu",
        "alibi": False,
        "bias": False,
        "tie_word_embeddings": True,
    },
    "gemma": {"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": _GEMMA
    | _WINDOWS
    | {"tie_word_embeddings": True, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": _GEMMA | _WINDOWS | {"tie_word_embeddings": True, "rope_local_base_freq": 100.0},
    "gemma4_text": _WINDOWS
    | {
        "hidden_activation": "gelu_pytorch_tanh",
        "global_head_dim": 64,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCAB,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
        "rope_theta": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    },
    "glm": {"attention_bias": True, "partial_rotary_factor": 0.5},
    "glm4": {"attention_bias": True, "partial_rotary_factor": 0.5},
    "glm4_moe": _GROUPS | {"attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5},
    "gpt_oss": _WINDOWS | {"num_local_experts": 5, "num_experts_per_tok": 2, "rope_scaling": YARN},
    "gpt2": _GPT2 | {"activation_function": "gelu_new"},
    "gpt_bigcode": _GPT2 | {"activation_function": "gelu_pytorch_tanh"},
    "gpt_neox": _LAYER_NORM
    | {"rope_theta": None, "rotary_pct": 0.25, "head_dim": None, "num_key_value_heads": None, "hidden_act": "gelu"},
    "granite": _GRANITE,
    "granitemoe": _GRANITE | {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": None},
    "granitemoeshared": _GRANITE
    | {"num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 48, "head_dim": None},
    "helium": {},
    "hunyuan_v1_dense": {"rope_scaling": _ALPHA},
    "hunyuan_v1_moe": {"rope_scaling": _ALPHA, "num_experts": 5, "moe_topk": 2},
    "internlm2": {"bias": False, "head_dim": None},
    "internlm3": {},
    "kimi_linear": kimi_models.EFFECTS,
    "laguna": _WINDOWS
    | {
        "rope_theta": None,
        "rope_parameters": {
            "full_attention": YARN | {"rope_theta": 5000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
        },
        "num_attention_heads_per_layer": [6, 4] * (NUM_LAYERS // 2),
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_routed_scaling_factor": 2.5,
    },
    "llama": {},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA | _SHARED | {"num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": None},
    "qwen3_next": _DELTA | _SHARED | _EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": [1]},
    "lfm2": _CONV
    | {
        "block_ff_dim": 100,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.3,
        "block_auto_adjust_ff_dim": True,
        "full_attn_idxs": [0, 3],
    },
    "lfm2_moe": _CONV
    | _EXPERTS
    | {"moe_intermediate_size": 40, "num_dense_layers": 1, "use_expert_bias": True, "routed_scaling_factor": 2.5},
    "llama4_text": {
        "intermediate_size": 40,
        "intermediate_size_mlp": 88,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": WINDOW,
        "attn_scale": 0.4,
        "floor_scale": 4,
    },
    "mimo_v2_flash": _GROUPS
    | _WINDOWS
    | {
        "n_shared_experts": None,
        "first_k_dense_replace": None,
        "num_key_value_heads": 1,
        "head_dim": 48,
        "v_head_dim": 32,
        "attention_value_scale": 0.6,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "rope_theta": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.334},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.334},
        },
    },
    "ministral3": {
        "rope_theta": None,
        "rope_parameters": YARN | {"rope_theta": 5000.0, "llama_4_scaling_beta": 0.3},
    },
    "minimax_m2": {
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "intermediate_size": 40,
        "rotary_dim": 16,
    },
    "minimax_m3_vl_text": indexer_effects.minimax_m3(NUM_LAYERS),
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "nemotron": {
        "norm_eps": 1e-5,
        "rms_norm_eps": None,
        "hidden_act": "relu2",
        "partial_rotary_factor": 0.5,
    },
    "olmo": {"rms_norm_eps": None, "clip_qkv": 0.5, "head_dim": None},
    "olmo2": {"head_dim": None},
    "olmo3": _WINDOWS | {"head_dim": None, "rope_theta": 500000.0},
    "olmoe": _EXPERTS | {"head_dim": None},
    "phi": _LAYER_NORM | {"head_dim": None, "partial_rotary_factor": 0.5, "hidden_act": "gelu_new"},
    "phi3": {"head_dim": None, "original_max_position_embeddings": 16},
    "qwen2": {"head_dim": None},
    "qwen2_moe": _EXPERTS | {"moe_intermediate_size": 40, "shared_expert_intermediate_size": 48, "head_dim": None},
    "qwen3": {},
    "qwen3_moe": _EXPERTS | {"moe_intermediate_size": 40},
    "seed_oss": {"attention_bias": True, "attention_out_bias": False},
    "smollm3": {"head_dim": None},
    "stablelm": _LAYER_NORM | {"head_dim": None, "partial_rotary_factor": 0.25},
    "starcoder2": {"norm_epsilon": 1e-5, "rms_norm_eps": None, "head_dim": None, "tie_word_embeddings": True},
    "step3p5": step_models.EFFECTS,
    **ssm_effects.BASES,
}
"""The keys in which each family's base differs from the common base; null removes a key."""

OF_MLX_LM = ("internlm2", "step3p5")
"""Families that transformers lacks (step3p5: has in a wrapper with images alone), and mlx-lm has."""


class Change(NamedTuple):
    """A change of one key of one base."""

    base: str
    """`rope_theta` or `rope_parameters`: how the base spells RoPE."""
    key: str
    """The key; a dot leads into a section."""
    value: Any
    """The new value; None removes the key."""


def base_config(family: str, spelling: str) -> Config:
    """The config to which changes are applied."""
    config = _copied({key: value for key, value in (_BASE | FAMILIES[family]).items() if value is not None})
    config["model_type"] = family
    if spelling == "rope_theta" or "rope_parameters" in config:
        return config
    theta = config.pop("rope_theta")
    rope: Config = {"rope_theta": theta, "rope_type": "default"} | config.pop("rope_scaling", {})
    if (share := config.pop("partial_rotary_factor", None)) is not None:
        rope["partial_rotary_factor"] = share
    if family in ("gemma3_text", "olmo3"):
        local = config.pop("rope_local_base_freq", theta)
        rope = {"full_attention": rope, "sliding_attention": {"rope_theta": local, "rope_type": "default"}}
    return config | {"rope_parameters": rope}


def _copied(config: Config) -> Config:
    copied: Config = json.loads(json.dumps(config))  # reference code writes defaults into its argument's sections
    return copied


def spellings(family: str) -> list[str]:
    """The spellings of a family's bases."""
    named_otherwise = FAMILIES[family].get("rope_theta", 0) is None and "rope_parameters" not in FAMILIES[family]
    if family in OF_MLX_LM or named_otherwise:  # the former's own code and mlx-lm's know no rope_parameters
        return ["rope_theta"]
    return ["rope_parameters"] if "rope_parameters" in FAMILIES[family] else ["rope_theta", "rope_parameters"]


def changed(config: Config, change: Change) -> Config:
    """The config with the change applied."""
    new = _copied(config)
    section, *rest = change.key.split(".")
    if rest:
        new[section][rest[0]] = change.value
    elif change.value is None:
        new.pop(section, None)
    else:
        new[section] = change.value
    return new


def changes(family: str, own_keys: Mapping[str, Any]) -> Iterator[Change]:
    """All changes of a family's bases.

    Args:
        family: the family.
        own_keys: defaults of the reference's own config, for keys that the table of values lacks.
    """
    for spelling in spellings(family):
        base = base_config(family, spelling)
        values = {key: [_other(value)] for key, value in own_keys.items() if _other(value) is not None} | VALUES
        values |= latent_effects.values(NUM_LAYERS) if "kv_lora_rank" in base else {}
        values |= dbrx_models.EFFECTS if "ffn_config" in base else alibi_models.EFFECTS if "attn_config" in base else {}
        values |= ssm_effects.VALUES.get(family, {}) | (kimi_models.VALUES if family == "kimi_linear" else {})
        if spelling != spellings(family)[0]:  # the rest of the config means the same in both
            values = {key: options[:1] for key, options in values.items() if "rope" in key or "rotary" in key}
        for key, options in sorted(values.items()):
            if key in ("rope_scaling", "linear_attn_config") or not isinstance(base.get(key), dict):
                yield from (Change(spelling, key, value) for value in options if base.get(key) != value)
        inner = base.get("rope_parameters", {})
        if any(isinstance(value, dict) for value in inner.values()):
            continue
        if inner:
            for key, options in PARAMETERS.items():
                yield from (Change(spelling, f"rope_parameters.{key}", v) for v in options if inner.get(key) != v)


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 + type(value)(1)
    return None


def numbers(name: str, shape: tuple[int, ...], norms_around: float) -> npt.NDArray[np.float32]:
    """The weights of a tensor, generated from its name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    plain = rng.standard_normal(shape)
    if name.endswith(("act_fn.beta", "act_fn.eps")):  # constants of an activation
        return np.full(shape, 0.5 if name.endswith("beta") else -1e-6, np.float32)
    if name.endswith(("mixer.A_log", "mamba.A_log")):
        return (plain * 0.3 - 1.0).astype(np.float32)
    if name.endswith("e_score_correction_bias"):
        return (plain * 0.5 - 1.0).astype(np.float32)  # below 0 with the scores, where an expert is masked by 0
    if "norm" in name.replace("norm_attn_norm", "") and name.endswith("weight"):
        plain = plain * 0.3 + norms_around
    elif len(shape) > 1 and "embed" not in name:
        plain = plain * shape[-1] ** -0.5
    elif len(shape) == 1:
        plain = plain * 0.3 + (name.endswith("layer_scalar"))
    return plain.astype(np.float32)


def weights(family: str, shapes: Mapping[str, list[int]]) -> dict[str, npt.NDArray[np.float32]]:
    """All weights of a model."""
    around = 0.0 if family.startswith(("gemma", "nemotron")) and family != "gemma4_text" else 1.0
    return {name: numbers(name, tuple(shape), around) for name, shape in shapes.items()}


class Row(NamedTuple):
    """The result of a change."""

    change: Change
    effect: str
    """`none`, `changes` or `error`."""
    logits: list[float]


class Recorded(NamedTuple):
    """All recorded results of a family."""

    reference: str
    shapes: dict[str, list[int]]
    bases: dict[str, list[float]]
    """Logits of each base."""
    rows: list[Row]


def load_recorded() -> dict[str, Recorded]:
    """The recorded results of all families."""
    families = {}
    for family, entry in json.loads(RECORDED.read_text()).items():
        rows = [Row(Change(base, key, value), effect, logits) for base, key, value, effect, logits in entry["rows"]]
        families[family] = Recorded(entry["reference"], entry["shapes"], entry["bases"], rows)
    return families
