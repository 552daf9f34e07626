"""What every engine has to read for a token, whatever its layout: computed from the file and the model's shape."""

from pathlib import Path

from mlxr.runtime.weights.open_weights import open_weights
from peers.models import SHAPES

_HALF = 2
_STORYTELLER = (6, 2, 64)


def file_weight_bytes(source: Path) -> int:
    """Bytes of all tensors, without the embedding table (of which one row is read) unless it is the output too."""
    tensors = open_weights(source).tensors
    untied = {"output.weight", "lm_head.weight"} & tensors.keys()
    table = ("token_embd.", "model.embed_tokens.")
    return sum(info.size_bytes for name, info in tensors.items() if not (untied and name.startswith(table)))


def key_value_bytes(model: str, tokens: int) -> int:
    """Bytes of f16 keys and values of so many tokens."""
    layers, kv_heads, head_dim = _STORYTELLER
    if model in SHAPES:
        shape = SHAPES[model]
        layers, kv_heads, head_dim = shape.layers, shape.kv_heads, shape.head_dim
    return 2 * layers * kv_heads * head_dim * _HALF * tokens
