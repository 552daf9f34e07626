"""Configs of families with latent attention, for `family_models`."""

from typing import Any

Config = dict[str, Any]


def cases(grouped: Config, yarn: Config, longrope: Config) -> dict[str, Config]:
    """Cases as those of `family_models`.

    Args:
        grouped: what configs with experts say of them.
        yarn: RoPE scaled as YaRN does.
        longrope: RoPE with factors for short and for long contexts.
    """
    latent = grouped | {
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "kv_lora_rank": 48,
        "q_lora_rank": 56,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 16,
        "v_head_dim": 40,
        "attention_bias": False,
    }
    mscale = {"rope_scaling": yarn | {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 0.7}}
    indexed = {
        "n_group": 1,
        "topk_group": 1,
        "moe_layer_freq": 1,
        "index_head_dim": 32,
        "index_n_heads": 4,
        "index_topk": 128,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
    }
    return {
        "deepseek_v3": latent | mscale | {"n_group": 1, "topk_group": 1},
        "deepseek_v3, one projection of queries": latent | {"q_lora_rank": None, "n_group": 1, "topk_group": 1},
        "deepseek_v2": latent
        | {
            "topk_method": "group_limited_greedy",
            "rope_scaling": yarn | {"type": "yarn", "mscale": 0.7, "mscale_all_dim": 0.7},
        },
        "deepseek_v2, one projection": latent | mscale | {"topk_method": "greedy", "q_lora_rank": None},
        "glm4_moe_lite": latent
        | {"n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "moe_layer_freq": 1, "rms_norm_eps": 1e-6},
        "deepseek_v32": latent | mscale | indexed,
        "glm_moe_dsa": latent | indexed | {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
        "mistral4": latent
        | {
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 0,
            "rope_parameters": yarn
            | {"type": "yarn", "rope_theta": 5000.0, "llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        "minicpm3": {
            "dim_model_base": 64,
            "scale_depth": 1.4,
            "scale_emb": 3,
            "hidden_size": 96,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "kv_lora_rank": 48,
            "q_lora_rank": 56,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 32,
            "attention_bias": False,
            "rope_scaling": longrope | {"original_max_position_embeddings": 16},
        },
    }
