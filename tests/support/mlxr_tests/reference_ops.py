"""Single ops of the reference, by their names and attributes in files."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.op_registry import read_op_kind
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts import mlx_ops
from mlxr.runtime.hosts.mlx_ops import ArenaLayer

PLAIN_PROJECTION: dict[str, Any] = {
    name: value for name, value in Projection(DType.F32).attributes.items() if name != "dtype"
}
"""Attributes of a projection that does the same as a linear op."""


def evaluate(
    kind: str, inputs: Mapping[str, mx.array], attrs: Mapping[str, Any], arena: Arena | None = None, layer: int = 0
) -> dict[str, mx.array]:
    """The outputs of an op, given its kind and attributes as in a file."""
    place = None if arena is None else ArenaLayer(arena, layer)
    return mlx_ops.evaluate(read_op_kind(kind, attrs), inputs if arena is None else {**arena.stores, **inputs}, place)
