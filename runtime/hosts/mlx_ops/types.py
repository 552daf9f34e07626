"""The signature that all op functions share.

An op function takes its inputs by port, its attributes, and the arena (None where there is none), and returns its
outputs by port. It computes in fp32 and rounds each result once, to the type the op table declares for it. Batch
metadata has its exact size: arrays padded for kernels would be read as tokens and sequences.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from mlxr.runtime.cache.arena import Arena

Inputs = Mapping[str, mx.array]
Attrs = Mapping[str, Any]
Outputs = dict[str, mx.array]
OpFunction = Callable[[Inputs, Attrs, Arena | None], Outputs]


def f32(x: mx.array) -> mx.array:
    """The array in fp32."""
    return x.astype(mx.float32)
