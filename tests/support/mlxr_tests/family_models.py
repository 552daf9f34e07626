"""Tiny random models of every family, built and saved by mlx-lm's own code.

Dims are unequal if the family allows it; the window is shorter than the sequences, so that it matters.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path
from mlx_lm.utils import MODEL_REMAPPING, save_model

from mlxr_tests import latent_models, ssm_models
from mlxr_tests.dbrx_models import DBRX
from mlxr_tests.gemma_4_models import GEMMA_4
from mlxr_tests.kimi_models import KIMI
from mlxr_tests.lfm2_models import LFM2
from mlxr_tests.mimo_models import MIMO_V2
from mlxr_tests.qwen_delta_models import QWEN_DELTA
from mlxr_tests.step_models import STEP

Module = Any  # mlx.nn has no annotations
Config = dict[str, Any]

VOCAB = 61
WINDOW = 6
_BASE: Config = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "tie_word_embeddings": False,
}
_HEADS: Config = {"hidden_size": 96, "num_attention_heads": 6, "head_dim": 32}
_LLAMA3: Config = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN: Config = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_LONGROPE: Config = {
    "type": "longrope",
    "short_factor": [1.0 + 0.05 * i for i in range(16)],
    "long_factor": [1.5 + 0.25 * i for i in range(16)],
}
_ALPHA: Config = {"type": "dynamic", "alpha": 50.0, "factor": 1.0}
_EXPERTS: Config = {"num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True, "moe_intermediate_size": 40}
_GROUPED: Config = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "rope_scaling": None,
}
_MINIMAX: Config = _HEADS | {
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "shared_intermediate_size": 0,
    "scoring_func": "sigmoid",
    "rotary_dim": 16,
    "use_qk_norm": True,
    "intermediate_size": 40,
}
_MINIMAX_3: Config = _HEADS | {
    "num_hidden_layers": 3,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "intermediate_size": 40,
    "dense_intermediate_size": 88,
    "shared_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
    "swiglu_limit": 7.0,
    "rotary_dim": 16,
    "partial_rotary_factor": 0.5,
    "moe_layer_freq": [0, 1, 1],
    "sparse_attention_config": {
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 64,
        "sparse_block_size": 16,
        "sparse_topk_blocks": 4,
        "sparse_local_block": 1,
        "sparse_attention_freq": [0, 1, 1],
    },
}
_ERNIE: Config = {
    "head_dim": 32,
    "use_bias": False,
    "moe_num_experts": 6,
    "moe_k": 2,
    "moe_intermediate_size": 40,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 1,
    "moe_layer_interval": 1,
    "moe_gate_act": "softmax",
}
_LLAMA4: Config = {
    # mlx-lm's norm of queries and keys always has this epsilon.
    "rms_norm_eps": 1e-6,
    "num_hidden_layers": 5,
    "intermediate_size": 40,
    "intermediate_size_mlp": 88,
    "num_local_experts": 5,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attention_bias": False,
    "attention_chunk_size": WINDOW,
    "attn_scale": 0.4,
    "floor_scale": 4,
    "rope_scaling": _LLAMA3,
    "use_qk_norm": True,
}
_GPT2: Config = {
    "layer_norm_epsilon": 1e-4,
    "n_embd": 128,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "n_ctx": 64,
    "n_inner": 512,
    "num_key_value_heads": 4,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}
_LAGUNA: Config = {
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_attention_heads_per_layer": [4, 6, 6],
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "sliding_window": WINDOW,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "moe_routed_scaling_factor": 2.5,
    "rope_parameters": {
        "full_attention": _YARN | {"rope_theta": 5000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    },
}
_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}

CONFIGS: dict[str, Config] = {
    "llama": _HEADS | {"attention_bias": True, "mlp_bias": True},
    "llama, llama3 scaling": {"rope_scaling": _LLAMA3, "tie_word_embeddings": True},
    "llama, linear scaling": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama, yarn": {"rope_scaling": _YARN},
    # As many as Baichuan 7B has, whose GGUF files are the same tensors.
    "llama, 32 layers": {"num_hidden_layers": 32, "num_key_value_heads": 4, "intermediate_size": 40},
    "llama, 40 layers": {"num_hidden_layers": 40, "num_key_value_heads": 4, "intermediate_size": 40},
    "mistral": {"sliding_window": None} | _HEADS,
    "ministral3": {
        "head_dim": 32,
        "rope_parameters": _YARN
        | {"rope_theta": 5000.0, "llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "qwen2": {"tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 32, "max_window_layers": 28},
    "qwen2, output": {"use_sliding_window": False},
    "qwen3": _HEADS,
    "qwen3_moe": _HEADS | _EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "qwen3_moe, a dense layer": _HEADS
    | _EXPERTS
    | {"decoder_sparse_step": 1, "mlp_only_layers": [1], "norm_topk_prob": False},
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": False, "intermediate_size": 40},
    "olmoe, GQA 1": {
        "num_key_value_heads": 4,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
        "intermediate_size": 40,
    },
    "gemma": _HEADS | {"tie_word_embeddings": True, "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"},
    "gemma2": _HEADS
    | {
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 64,
    },
    "gemma3_text": _HEADS
    | {
        "hidden_size": 64,
        "query_pre_attn_scalar": 24,
        "num_hidden_layers": 3,
        "sliding_window_pattern": 3,
        "sliding_window": WINDOW,
        "rope_local_base_freq": 100.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma3_text, seven layers": _HEADS
    | {"hidden_size": 64, "num_hidden_layers": 7, "sliding_window": WINDOW, "query_pre_attn_scalar": 32},
    **GEMMA_4,
    "phi3": {"rope_scaling": _LONGROPE, "original_max_position_embeddings": 16},
    "phi3, partial": {"partial_rotary_factor": 0.75},
    "phi3, partial longrope": {
        "partial_rotary_factor": 0.75,
        "rope_scaling": {key: value[:12] if isinstance(value, list) else value for key, value in _LONGROPE.items()},
        "original_max_position_embeddings": 16,
        "tie_word_embeddings": True,
    },
    "olmo2": _HEADS,
    "olmo2, square": {},
    "smollm3": _HEADS | {"num_hidden_layers": 5},
    "granite": {
        "logits_scaling": 4.0,
        "attention_multiplier": 0.05,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "attention_bias": True,
        "mlp_bias": False,
    },
    "cohere": {"layer_norm_eps": 1e-4, "logit_scale": 0.25, "tie_word_embeddings": True},
    "cohere, norms and biases": {
        "layer_norm_eps": 1e-4,
        "logit_scale": 0.25,
        "use_qk_norm": True,
        "layer_norm_bias": True,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "cohere, qk norm": {"layer_norm_eps": 1e-4, "logit_scale": 0.25, "use_qk_norm": True, "tie_word_embeddings": True},
    "starcoder2": {"norm_epsilon": 1e-4, "hidden_act": "gelu"},
    "stablelm": {"layer_norm_eps": 1e-4, "use_qkv_bias": True, "partial_rotary_factor": 0.25},
    "stablelm, parallel": {
        "layer_norm_eps": 1e-4,
        "use_qkv_bias": False,
        "partial_rotary_factor": 0.5,
        "use_parallel_residual": True,
        "qk_layernorm": True,
    },
    "internlm2": {"bias": False},
    "internlm2, biases": {"bias": True},
    "exaone4": _HEADS
    | {
        "rope_scaling": _LLAMA3,
        "num_hidden_layers": 5,
        "sliding_window": WINDOW,
        "sliding_window_pattern": "LLLG",
    },
    "granitemoehybrid": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.05,
        "logits_scaling": 4.0,
        "residual_multiplier": 0.3,
        "attention_bias": False,
        "layer_types": ["attention"] * 2,
        "num_local_experts": 0,
        "shared_intermediate_size": 88,
        "intermediate_size": 88,
        "position_embedding_type": "rope",
    },
    "granitemoehybrid, experts": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.05,
        "logits_scaling": 4.0,
        "residual_multiplier": 0.3,
        "attention_bias": False,
        "layer_types": ["attention"] * 2,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 72,
        "intermediate_size": 40,
        "position_embedding_type": "rope",
    },
    "exaone4, no window": _HEADS | {"rope_scaling": _LLAMA3, "sliding_window": None, "sliding_window_pattern": None},
    "exaone4, square": {"head_dim": 32, "rope_scaling": None, "sliding_window": None, "sliding_window_pattern": None},
    "internlm3": {"head_dim": 32},
    "olmo3": _HEADS | {"num_hidden_layers": 5, "sliding_window": WINDOW, "rope_scaling": _YARN, "rope_theta": 500000.0},
    "olmo3, square": {
        "num_hidden_layers": 5,
        "sliding_window": WINDOW,
        "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full")],
        "rope_scaling": _YARN,
        "rope_theta": 500000.0,
    },
    "glm": {"head_dim": 32, "attention_bias": True, "partial_rotary_factor": 1.0},
    "glm4": _HEADS | {"attention_bias": True, "partial_rotary_factor": 0.5},
    "seed_oss": _HEADS | {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False},
    "ernie4_5": _HEADS | {"use_bias": True, "tie_word_embeddings": True},
    "ernie4_5, no biases": _HEADS | {"use_bias": False, "tie_word_embeddings": False},
    "ernie4_5_moe": _ERNIE | {"num_hidden_layers": 3, "tie_word_embeddings": True},
    "ernie4_5_moe, first layer": _ERNIE | {"num_hidden_layers": 2},
    "mimo": {"attention_bias": True, "num_nextn_predict_layers": 1},
    "minicpm": {"dim_model_base": 24, "scale_depth": 1.4, "scale_emb": 12},
    "exaone": {"num_layers": 2, "layer_norm_epsilon": 1e-4, "rope_scaling": _LLAMA3},
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2 | {"activation_function": "gelu", "num_key_value_heads": 1},
    "apertus": {
        "mlp_bias": False,
        "attention_bias": False,
        "post_norm": False,
        "qk_norm": True,
        "hidden_act": "xielu",
        "rope_scaling": _LLAMA3,
    },
    "helium": {"head_dim": 32, "attention_bias": False, "mlp_bias": False},
    "nemotron": {"norm_eps": 1e-4, "hidden_act": "relu2", "partial_rotary_factor": 0.5, "head_dim": 32},
    "cohere2": {
        "layer_norm_eps": 1e-4,
        "logit_scale": 0.25,
        "head_dim": 32,
        "num_hidden_layers": 5,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 4,
        "tie_word_embeddings": True,
    },
    "qwen2_moe": _EXPERTS
    | {
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": 72,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "granitemoe": {
        "logits_scaling": 4.0,
        "attention_multiplier": 0.05,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "attention_bias": False,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
    },
    "glm4_moe": _HEADS
    | _GROUPED
    | {"num_hidden_layers": 3, "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5},
    "glm4_moe, no qk norm": _HEADS
    | _GROUPED
    | {
        "attention_bias": True,
        "use_qk_norm": False,
        "partial_rotary_factor": 0.5,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
    },
    "dots1": {"head_dim": 32, "num_key_value_heads": 4, "attention_bias": False}
    | _GROUPED
    | {"n_group": 1, "topk_group": 1},
    **latent_models.cases(_GROUPED, _YARN, _LONGROPE),
    **ssm_models.CONFIGS,
    "minimax_m2": _MINIMAX,
    "minimax": _MINIMAX,
    "minimax_m3_vl_text": {"model_type": "minimax_m3_vl", "text_config": _BASE | _MINIMAX_3},
    "hunyuan_v1_dense": _HEADS
    | {"attention_bias": False, "rope_scaling": _ALPHA, "tie_word_embeddings": True, "use_qk_norm": True},
    # All experts are chosen: mlx-lm does not divide their weights by the sum.
    "hunyuan_v1_moe": {
        "model_type": "hunyuan",
        "rope_scaling": _ALPHA,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "moe_topk": [3, 3],
        "num_experts": 3,
        "num_shared_expert": 1,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
        "use_cla": False,
        "cla_share_factor": 2,
    },
    "llama4_text": {"model_type": "llama4", "text_config": _BASE | _HEADS | _LLAMA4 | {"model_type": "llama4_text"}},
    "llama4_text, without experts": _HEADS
    | {
        "intermediate_size_mlp": 88,
        "moe_layers": [],
        "no_rope_layers": [1, 1],
        "use_qk_norm": True,
        "tie_word_embeddings": True,
    },
    "gpt_neox": {
        "layer_norm_eps": 1e-4,
        "intermediate_size": 512,
        "num_key_value_heads": 4,
        "rotary_emb_base": 5000,
        "rotary_pct": 0.25,
        "hidden_act": "gelu_fast",
        "use_parallel_residual": True,
    },
    "gpt_neox, one after the other": {
        "layer_norm_eps": 1e-4,
        "intermediate_size": 512,
        "num_key_value_heads": 4,
        "rotary_emb_base": 5000,
        "rotary_pct": 1.0,
        "hidden_act": "gelu_fast",
        "use_parallel_residual": False,
    },
    "phi": {"layer_norm_eps": 1e-4, "partial_rotary_factor": 0.5, "hidden_act": "gelu_new"},
    "afmoe": _HEADS
    | _EXPERTS
    | {
        "num_hidden_layers": 5,
        "num_dense_layers": 2,
        "num_shared_experts": 2,
        "route_scale": 2.5,
        "mup_enabled": True,
        "sliding_window": WINDOW,
        "layer_types": [f"{kind}_attention" for kind in ("sliding", "sliding", "sliding", "full", "sliding")],
    },
    "exaone_moe": _HEADS
    | _GROUPED
    | {
        "num_hidden_layers": 5,
        "num_experts": 8,
        "num_shared_experts": 2,
        "n_group": 1,
        "topk_group": 1,
        "is_moe_layer": [False, True, True, True, True],
        "sliding_window": WINDOW,
        "layer_types": [f"{kind}_attention" for kind in ("sliding", "sliding", "sliding", "full", "sliding")],
    },
    "laguna": _HEADS | _LAGUNA,
    **MIMO_V2,
    **LFM2,
    **(QWEN_DELTA | KIMI),
    **STEP,
    **DBRX,
    "gpt_oss": _HEADS
    | _LAYERS
    | {
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 64,
        "rope_scaling": _YARN,
        "swiglu_limit": 7.0,
    },
}
"""Cases by name; the text before the comma is the family."""


def config_of(case: str) -> Config:
    """The config.json of a case."""
    config = _BASE | {"model_type": case.partition(",")[0]} | CONFIGS[case]
    config |= {key: value for key, value in config.get("text_config", {}).items() if key != "model_type"}
    if {"layer_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon", "layernorm_epsilon"} & config.keys():
        del config["rms_norm_eps"]
    return config


def build_model(config: Config) -> Module:
    """mlx-lm's model of a config, with random values for every parameter, norms and biases too."""
    kind = config["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(kind, kind)}")
    model = module.Model(module.ModelArgs.from_dict(config))
    rng = np.random.default_rng(0)

    def tensor(path: str, old: mx.array) -> mx.array:
        path = path.replace("norm_attn_norm", "block")  # DBRX's, which is no norm
        if not isinstance(old, mx.array) or path.endswith(("act_fn.beta", "act_fn.eps")):  # constants
            return old
        scale = 1.0 if old.ndim <= 1 or ("embed" in path and "embed_q" not in path) else old.shape[-1] ** -0.5
        shifted = config["model_type"].startswith(("gemma", "minimax_m3")) and config["model_type"] != "gemma4_text"
        is_scalar = path.endswith("layer_scalar")
        around = ("norm" in path and path.endswith("weight") and not shifted) or is_scalar
        numbers = rng.standard_normal(old.shape) * scale * (0.3 if "norm" in path or is_scalar else 1.0) + around
        return mx.array(numbers.astype(np.float32))

    model.update(tree_map_with_path(tensor, model.parameters()))
    mx.eval(model.parameters())
    return model


def save_folder(model: Module, config: Config, folder: Path) -> Path:
    """The model as mlx-lm saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, model)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
