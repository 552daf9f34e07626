"""Indexers in GGUF files, for `family_gguf`: MLXR leaves them alone, but llama.cpp reads no file without them."""

from typing import Any

import numpy as np

_HEADS, _DIM = 4, 64  # llama.cpp has no smaller dimension
KEYS = {
    "attention.indexer.head_count": _HEADS,
    "attention.indexer.key_length": _DIM,
    "attention.indexer.top_k": 64,
}
"""Metadata of an indexer that chooses tokens."""
MINIMAX_M3 = KEYS | {
    "attention.indexer.head_count": 2,
    "attention.indexer.top_k": 4,
    "attention.indexer.block_size": 16,
    "attention.indexer.local_blocks": 1,
    "feed_forward_length": 88,
    "expert_count": 6,
    "expert_used_count": 3,
    "expert_feed_forward_length": 40,
    "expert_shared_count": 1,
    "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
    "leading_dense_block_count": 1,
    "rope.dimension_count": 16,
}
"""Those of a model whose indexers choose blocks of tokens, with a head for each head of keys."""


def indexers(metadata: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Tensors of the indexer of each layer, which chooses all tokens of contexts as short as those here.

    Args:
        metadata: what the file says.
        config: the config.json of the model.
    """
    rng, hidden, heads = np.random.default_rng(3), config["hidden_size"], metadata["attention.indexer.head_count"]
    if "attention.indexer.block_size" in metadata:
        first = metadata["leading_dense_block_count"]
        shapes = {
            "q_norm.weight": (_DIM,),
            "k_norm.weight": (_DIM,),
            "q_proj.weight": (heads * _DIM, hidden),
            "k_proj.weight": (_DIM, hidden),
        }
    else:
        first = 0
        shapes = {
            "k_norm.weight": (_DIM,),
            "k_norm.bias": (_DIM,),
            "proj.weight": (heads, hidden),
            "attn_k.weight": (_DIM, hidden),
            "attn_q_b.weight": (heads * _DIM, config["q_lora_rank"]),
        }
    return {
        f"blk.{layer}.indexer.{name}": rng.normal(size=shape).astype(np.float32)
        for layer in range(first, config["num_hidden_layers"])
        for name, shape in shapes.items()
    }
