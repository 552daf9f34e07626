"""Undo the row order that GGUF's llama architecture gives to the query and key projections."""

from mlxr.runtime.weights.element_types import Array


def unpermute_rope(rows: Array, heads: int) -> Array:
    """Reorder the rows of `heads` heads from rotary pairs side by side to halves of a head.

    GGUF stores the pair that RoPE rotates in rows (2i, 2i + 1) of a head, Hugging Face in rows (i, i + head_dim / 2).

    Args:
        rows: [heads * head_dim, ...], projection rows or biases.
        heads: how many heads they are.

    Source: the inverse of `permute` in llama.cpp's convert_hf_to_gguf.py.
    """
    half = rows.shape[0] // heads // 2
    assert rows.shape[0] == heads * half * 2, f"{rows.shape[0]} rows are not {heads} heads of an even number of rows"
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
