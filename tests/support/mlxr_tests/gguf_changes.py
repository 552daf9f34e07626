"""Other forms of the tensors of a GGUF file."""

import re
from typing import Any

import numpy as np


def joined(tensors: dict[str, Any]) -> dict[str, Any]:
    """Queries, keys and values as one tensor, also in files of folders that have them so."""
    found: dict[str, Any] = {}
    for name, array in tensors.items():
        has_all = re.sub(r"attn_[qkv]\.", "attn_k.", name) in tensors  # latent attention has queries alone
        new = re.sub(r"attn_[qkv]\.", "attn_qkv.", name) if has_all else name
        found[new] = np.concatenate([found[new], array]) if new in found else array
    return found


def guessing_layer(tensors: dict[str, Any]) -> dict[str, Any]:
    """A layer behind the second, with what joins its row and the next token's embedding."""
    layer = {name.replace("blk.1.", "blk.2."): array for name, array in tensors.items() if name.startswith("blk.1.")}
    norm = layer["blk.2.attn_norm.weight"]
    joins = {"eh_proj": np.ones((norm.size, 2 * norm.size), np.float32), "enorm": norm, "hnorm": norm}
    return layer | {f"blk.2.nextn.{name}.weight": array for name, array in joins.items()}
