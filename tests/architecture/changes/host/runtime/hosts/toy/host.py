"""The toy host."""

import mlx.core as mx

from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.sim.host import SimHost


class ToyHost(SimHost):
    """Runs the Metal program, and counts its steps."""

    name = "toy"

    def step(self, batch: Batch) -> mx.array:
        """Counts the step and runs it."""
        self.count("toy_step")
        return super().step(batch)
