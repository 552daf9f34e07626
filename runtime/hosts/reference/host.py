"""The `reference` host: runs the source graph op by op as MLX ops. It is the oracle of the other hosts, and slow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.arena_blocks import copy_blocks
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.host import ArrayHost
from mlxr.runtime.hosts.mlx_ops import Observer, run_graph
from mlxr.runtime.memory.fitting_arena import Footprint
from mlxr.runtime.weights.weight_file import WeightFile


class ReferenceHost(ArrayHost):
    """Runs a graph of the artifact as MLX ops, one per op, in program order.

    It accesses the arena in place and at once, and returns logits that are evaluated. `launches` counts kinds of ops.

    Attributes:
        graph: the graph that it runs.
        bound: the weights that the graph binds, by name.
        observe: called before each op with what its ports read; None: nobody is.
    """

    name = "reference"
    reads_buffers: ClassVar[bool] = False

    def __init__(
        self,
        artifact: Artifact,
        weights: Mapping[str, mx.array],
        arena: Arena,
        graph: Literal["source", "decode", "prefill"] = "source",
    ) -> None:
        """Prepares to execute.

        Args:
            artifact: the compiled model.
            weights: packed weights by the names of `artifact.plan.weights`.
            arena: the KV arena that every step reads and writes.
            graph: which graph to run; `decode` only takes batches with one token of each sequence.
        """
        super().__init__(artifact, weights, arena)
        self.graph_name = graph
        self.graph = artifact.graph(graph)
        self.bound = self._unpack(weights)
        self.observe: Observer | None = None

    @classmethod
    def footprint(
        cls, artifact: Artifact, file: WeightFile, threads: int | None = None, *, resident: int | None = None
    ) -> Footprint:
        """See `Host.footprint`; the weights are numbers."""
        numbers = sum(prod(weight.shape) * weight.dtype.size_bytes for weight in artifact.plan.weights)
        return replace(super().footprint(artifact, file, threads), weights_bytes=numbers)

    def step(self, batch: Batch) -> mx.array:
        """Runs one batch; see `Host.step`.

        Raises:
            HostError: the host runs the decode graph, and the batch is not a decode batch.
        """
        if self.graph_name == "decode" and not batch.is_decode:
            raise HostError(
                f"the decode graph takes one token a sequence, got {batch.num_tokens} tokens of {batch.num_seqs} "
                "sequences; run the graph prefill or source"
            )
        batch = self.completed(batch)
        outputs = run_graph(self.graph, self.bound, batch, self.arena, self.launches, self.observe)
        logits = outputs[self.graph.outputs[0]]
        mx.eval(logits)
        return logits

    def write_adapter(self, slot: int, matrices: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """See `Host.write_adapter`."""
        super().write_adapter(slot, matrices)
        self.bound = self._unpack(self.weights)

    def copy_blocks(self, copies: Sequence[tuple[int, int]], group: int = 0) -> None:
        """See `Host.copy_blocks`."""
        copy_blocks(self.arena, copies, group)

    def _unpack(self, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """The weights that the graph binds: whole ones, or, in the source graph, the parts of packed ones."""
        bound = {v.name for v in self.graph.values if v.role == "weight"}
        unpacked = {}
        for plan in self.plan.weights:
            row = 0
            for part in plan.parts:
                if part.name in bound:
                    unpacked[part.name] = weights[plan.name][row : row + part.shape[0]]
                row += part.shape[0]
            if plan.name in bound:
                unpacked[plan.name] = weights[plan.name]
        assert unpacked.keys() == bound, f"the plan lacks weights {sorted(bound - unpacked.keys())}"
        return unpacked
