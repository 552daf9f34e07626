"""A reference for a host whose cache rounds: it compares every layer's K and V, then continues from the host's.

A number half-way between two cache values may be rounded either way, which changes later results: in q8 by up to 1e-2
of their size after some layers. So each stored row is compared with the numbers before rounding, and both sides go on
from the same bytes, as exactly as with an f32 cache.
"""

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.ir.ops.cache import CacheWrite
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.mlx_ops import ArenaLayer
from mlxr.runtime.hosts.mlx_ops.table import op_functions
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr_tests.arenas import copy_slots, stored_rows
from mlxr_tests.specs import floats
from mlxr_tests.tolerances import check_stored


class FollowingReference(ReferenceHost):
    """Runs each batch after another host, and copies that host's K and V into its own arena."""

    def __init__(
        self, artifact: Artifact, weights: Mapping[str, mx.array], arena: Arena, leader: Arena, sum_error: float
    ) -> None:
        """Follows the host with arena `leader`; its sums may differ by `sum_error` of the largest sum."""
        super().__init__(artifact, weights, arena)
        self.leader, self.sum_error = leader, sum_error

    def step(self, batch: Batch) -> mx.array:
        """See `ReferenceHost`.

        Raises:
            Mismatch: the other host stored something else.
        """
        mx.eval(self.leader.token)
        with patch.dict(op_functions(), {CacheWrite: self._cache_write}):
            return super().step(batch)

    def _cache_write(self, inputs: Mapping[str, mx.array], attrs: CacheWrite, place: ArenaLayer) -> Any:
        arena, layer, slots, geometry = place.arena, place.layer, inputs["slots"].tolist(), place.arena.geometry
        cache = geometry.cache_of(layer)
        for port, rows in stored_rows(self.leader, layer, slots).items():
            numbers = floats(inputs[port]).reshape(rows.shape)
            what = f"{port.upper()} of layer {layer}, slots {slots}"
            check_stored(
                what, rows, numbers, str(cache.value_dtype if port == "v" else cache.dtype), sum_error=self.sum_error
            )
        copy_slots(self.leader, arena, {layer: set(slots)})
        return {"token": inputs["token"]} if "token" in inputs else {}
