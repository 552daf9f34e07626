"""Shapes and element types of values, as shape rules see them, and names that graphs, plans and hosts share.

Shapes mix numbers with the symbolic dims `tokens`, `seqs`, `rows` and `tiles` of a batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.formats.dtypes import DType

BatchDim = Literal["tokens", "seqs", "rows", "tiles", "copies", "context"]
"""The numbers of a batch. All but `copies` and `context` are dims of shapes."""
Dim = int | str
Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class Tensor:
    """Shape and element type of a value."""

    shape: Shape
    dtype: DType


Tensors = Mapping[str, Tensor]
"""The tensors of an op's ports, by port."""
TOKEN = Tensor((8,), DType.U32)
"""A token that orders accesses of the KV arena."""
ARENA_TOKEN = "arena_token"
"""The token that the previous step's last access made."""


def layer_buffer(layer: int) -> str:
    """The constant buffer that tells a kernel its layer."""
    return f"layer.{layer}"


def layer_prefix(layer: int) -> str:
    """The prefix of the names of a layer's ops, values and tensors: `layers.3.`."""
    return f"layers.{layer}."
