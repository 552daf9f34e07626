"""A spec of one's own, compiled with several contexts: what does each take? python examples/own_spec.py."""

import mlxr

SPEC = mlxr.ModelSpec.model_validate(
    {
        "name": "mine",
        "model": {
            "vocab_size": 32000,
            "hidden_size": 1024,
            "num_layers": 12,
            "context": 8192,
            "attention": {"num_heads": 16, "num_kv_heads": 4, "head_dim": 64},
            "mlp": {"intermediate_size": 2816, "activation": "silu"},
            "rope": {"theta": 10000.0},
            "tie_embeddings": True,
        },
        "cache": {"mode": "paged", "block_size": 16, "max_sequences": 1},
        "weights": {"default": "q4_k"},
    }
)

for context in (1024, 2048, 4096, 8192):
    memory = mlxr.compile(SPEC, changes=mlxr.Changes(context=context)).plan.programs["metal"].memory
    print(f"context {context}: cache {memory.arena_bytes / 2**20:.0f} MiB of {memory.total_bytes / 2**20:.0f} MiB")
