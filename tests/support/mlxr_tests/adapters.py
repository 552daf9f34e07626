"""Random adapters, and hosts whose sequences use them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import DOWN, UP, Artifact, ModelSpec, adapted_matrices
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr_tests.host_pair import HostPair

Matrices = dict[str, npt.NDArray[np.float32]]


def random_adapter(spec: ModelSpec, seed: int, only: Sequence[str] = ()) -> Matrices:
    """An adapter's matrices as hosts take them; of matrices whose names end with one of `only`, if there are any."""
    rng, found = np.random.default_rng(seed), {}
    assert spec.adapters is not None, "the model has places for adapters"
    for name, (rows, columns) in adapted_matrices(spec.model).items():
        if not only or name.endswith(tuple(only)):
            down, up = (spec.adapters.rank, columns), (spec.adapters.rank, rows)
            found[name + DOWN] = rng.standard_normal(down, dtype=np.float32) * np.float32(columns**-0.5)
            found[name + UP] = rng.standard_normal(up, dtype=np.float32) * np.float32(0.3)
    return found


class AdaptedPair(HostPair):
    """Two hosts, each sequence of which uses an adapter, or none.

    Attributes:
        uses: by sequence its adapter's slot and scale.
    """

    def __init__(self, artifact: Artifact, **options: Any) -> None:
        """As `HostPair`; all slots are empty."""
        super().__init__(artifact, **options)
        self.uses: dict[int, tuple[int, float]] = {}

    def put(self, slot: int, matrices: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Puts an adapter into a slot of both hosts."""
        self.host.write_adapter(slot, matrices)
        self.reference.write_adapter(slot, matrices)

    def add_using(self, slot: int, scale: float = 1.0) -> int:
        """Adds a sequence that uses a slot's adapter; -1: none."""
        seq_id = self.add()
        self.uses[seq_id] = (slot, scale)
        return seq_id

    def build(self, requests: Sequence[BatchRequest]) -> Batch:
        """See `HostPair.build`."""
        return super().build(requests).using([self.uses[request.seq_id] for request in requests])
