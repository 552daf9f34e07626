"""The reference beside a host whose cache rounds: every layer's K and V are compared, then it goes on from the host's.

A number that lies between two of the cache's is rounded either way, and what reads it moves: in q8 by up to 1e-2 of its
size after some layers. So rows are compared with the numbers that they were made of, and what reads them is computed
from the same bytes on both sides, as exactly as with a cache of f32.
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
    """Steps after another host has, on the same batch, and leaves that host's K and V in its own arena."""

    def __init__(
        self, artifact: Artifact, weights: Mapping[str, mx.array], arena: Arena, leader: Arena, sum_error: float
    ) -> None:
        """Follows the host whose arena is `leader`, and whose sums may differ by `sum_error` of their largest."""
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
        for port, found in stored_rows(self.leader, layer, slots).items():
            numbers = floats(inputs[port]).reshape(found.shape)
            what = f"{port.upper()} of layer {layer}, slots {slots}"
            check_stored(what, found, numbers, str(geometry.dtype), sum_error=self.sum_error)
        copy_slots(self.leader, arena, {layer: set(slots)})
        return {"token": inputs["token"]} if "token" in inputs else {}
