"""Configs of families whose tokens read the blocks that an indexer chooses, for `config_effects`."""

from typing import Any


def minimax_m3(num_layers: int) -> dict[str, Any]:
    """What the config of MiniMax M3 has beside what all have; the context is as long as all blocks that are chosen."""
    return {
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "intermediate_size": 40,
        "dense_intermediate_size": 88,
        "shared_intermediate_size": 56,
        "routed_scaling_factor": 2.5,
        "rotary_dim": 16,
        "partial_rotary_factor": 0.5,
        "mlp_layer_types": ["dense", "sparse"] * (num_layers // 2),
        "layer_types": ["full_attention", "minimax_m3_sparse"] * (num_layers // 2),
        "index_head_dim": 32,
        "index_n_heads": 2,
        "index_block_size": 16,
        "index_topk_blocks": 4,
        "swiglu_limit": 0.8,
    }
