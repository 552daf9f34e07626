"""The signature that all op functions share.

An op function takes its inputs by port, its attributes, and its layer of the arena (None where it accesses none), and
returns its outputs by port. It computes in fp32 and rounds each result once, to the type that its kind's shape rule
says. Batch metadata has its exact size: arrays padded for kernels would be read as tokens and sequences.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxr.runtime.cache.arena import Arena


@dataclass(frozen=True)
class ArenaLayer:
    """The arena, and the layer of it that an op accesses."""

    arena: Arena
    layer: int


Inputs = Mapping[str, mx.array]
Outputs = dict[str, mx.array]
OpFunction = Callable[[Inputs, Any, ArenaLayer | None], Outputs]
"""Called with inputs, the attributes of the kind that it is the function of, and the arena."""


def f32(x: mx.array) -> mx.array:
    """The array in fp32."""
    return x.astype(mx.float32)
