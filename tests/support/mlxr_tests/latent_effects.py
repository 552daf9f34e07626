"""Configs of families with latent attention, for `config_effects`."""

from typing import Any

Config = dict[str, Any]


def families(groups: Config, yarn: Config, num_layers: int) -> dict[str, Config]:
    """What each family's config has beside what all have.

    Args:
        groups: of experts in groups.
        yarn: of RoPE scaled as YaRN does.
        num_layers: layers of the model.
    """
    latent = {
        "head_dim": None,
        "num_key_value_heads": 4,
        "kv_lora_rank": 48,
        "q_lora_rank": 56,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 16,
        "v_head_dim": 40,
    }
    scaled = {"rope_theta": 5000.0, "llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0}
    indexed = {"index_topk": 64, "index_head_dim": 32, "index_n_heads": 2}
    scales = {"scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 64}
    return {
        "deepseek_v2": groups | latent | {"topk_method": "group_limited_greedy"},
        "deepseek_v3": groups | latent,
        "deepseek_v32": groups | latent | indexed,
        "glm_moe_dsa": groups | latent | indexed,
        "glm4_moe_lite": groups | latent | {"mlp_layer_types": ["dense", "sparse"] * (num_layers // 2)},
        "mistral4": groups | latent | {"rope_theta": None, "rope_parameters": yarn | scaled},
        "minicpm3": latent | scales | {"tie_word_embeddings": True},
    }


def values(num_layers: int) -> dict[str, list[Any]]:
    """Values that these families are tried with, one at a time."""
    return {
        "kv_lora_rank": [40],
        "mlp_layer_types": [["sparse"] * num_layers],
        "q_lora_rank": [None],
        "qk_nope_head_dim": [32],
        "qk_rope_head_dim": [8],
        "rope_interleave": [False],
        "topk_method": ["greedy", "noaux_tc"],
        "v_head_dim": [32],
    }
