"""Room for low-rank adapters (LoRA) in a compiled model."""

from typing import Annotated

from pydantic import Field

from mlxr.compiler.spec.architecture import LayerType, Model
from mlxr.compiler.spec.record import Record

RANK_STEP = 8
"""Ranks are multiples of it, so that kernels take whole vectors; an adapter of a lower rank is filled up with zeros."""
MOST_RANK = 512
MOST_ADAPTERS = 256
DOWN, UP = ".lora_a", ".lora_b"
"""How the names of an adapter's two matrices end: after the name of the matrix that they change."""


class Adapters(Record):
    """Places for adapters, which are loaded and unloaded while the model runs; each token says which one it uses."""

    rank: Annotated[int, Field(ge=RANK_STEP, le=MOST_RANK, multiple_of=RANK_STEP, strict=True)] = 16
    """The highest rank of an adapter: a multiple of 8."""
    slots: Annotated[int, Field(ge=1, le=MOST_ADAPTERS, strict=True)] = 4
    """How many adapters may be loaded at once."""


def adapted_matrices(model: Model) -> dict[str, tuple[int, int]]:
    """The matrices that adapters may change, by their canonical names: rows (outputs) and columns (inputs).

    These are q, k, v, o and the gate of attention, and gate, up and down of MLPs, but none of latent attention, of
    recurrent blocks and of experts.
    """
    found: dict[str, tuple[int, int]] = {}
    for index, layer in enumerate(model.layers):
        found |= {f"layers.{index}.{name}": shape for name, shape in _of_layer(layer, model.hidden_size).items()}
    return found


def _of_layer(layer: LayerType, hidden: int) -> dict[str, tuple[int, int]]:
    attention, mlp = layer.attention, layer.mlp
    found: dict[str, tuple[int, int]] = {}
    if attention is not None and attention.latent is None:
        results, heads = attention.num_heads * attention.result_dim, attention.num_heads * attention.head_dim
        found["attention.q"] = (heads, hidden)
        if attention.kv_from is None:
            found["attention.k"] = (attention.num_kv_heads * attention.head_dim, hidden)
            if not attention.values_from_keys:
                found["attention.v"] = (attention.num_kv_heads * attention.result_dim, hidden)
        if attention.gate_size:
            found["attention.gate"] = (attention.num_heads * attention.gate_size, hidden)
        found["attention.o"] = (hidden, results)
    if mlp is not None and mlp.experts is None:
        width = mlp.intermediate_size
        found |= {"mlp.gate": (width, hidden)} if mlp.gated else {}
        found |= {"mlp.up": (width, hidden), "mlp.down": (hidden, width)}
    return found
