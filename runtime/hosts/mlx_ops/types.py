"""The signature that all op functions share.

An op function takes its inputs by port, its attributes, and its layer of the stores (None where it accesses none), and
returns its outputs by port. It computes in fp32 and rounds each result once, to the type that its kind's shape rule
says. Batch metadata has its exact size: arrays padded for kernels would be read as tokens and sequences.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxr.compiler.artifact import CacheGeometry
from mlxr.runtime.cache.arena import Arena


@dataclass(frozen=True)
class ArenaLayer:
    """The arena, and the layer of the model whose rows of stores an op accesses."""

    arena: Arena
    layer: int

    @property
    def cache(self) -> CacheGeometry:
        """The layer's keys and values."""
        return self.arena.geometry.cache_of(self.layer)

    def place(self, port: str) -> int:
        """The layer's place in the array of the store that has this port."""
        return self.arena.geometry.place(self.arena.geometry.store(port), self.layer)[1]


Inputs = Mapping[str, mx.array]
Outputs = dict[str, mx.array]
OpFunction = Callable[[Inputs, Any, ArenaLayer | None], Outputs]
"""Called with inputs, the attributes of the kind that it is the function of, and the layer."""


def f32(x: mx.array) -> mx.array:
    """The array in fp32."""
    return x.astype(mx.float32)
