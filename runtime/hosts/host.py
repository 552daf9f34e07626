"""What a host is: it executes batches of one artifact, with one set of weights, on one arena."""

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Artifact, debug_level
from mlxr.runtime.arena import Arena
from mlxr.runtime.batch import Batch


class Host(ABC):
    """Executes batches. Owns no sequence state: that is the pager's; writes K and V into the arena in place.

    Attributes:
        launches: how often each kernel (or, on `reference`, each kind of op) was launched, counted where it happens.
    """

    name: ClassVar[str]

    def __init__(self, artifact: Artifact, weights: Mapping[str, mx.array], arena: Arena) -> None:
        """Prepares to execute.

        Args:
            artifact: the compiled model.
            weights: packed weights by the names of `artifact.plan.weights`.
            arena: the KV arena that every step reads and writes.

        Raises:
            HostError: this machine cannot run the host, or a kernel cannot be built. (MLX builds Metal kernels at
                their first launch: there `read` raises it.)
        """
        self.artifact = artifact
        self.plan = artifact.plan
        self.weights = weights
        self.arena = arena
        self.launches: Counter[str] = Counter()
        self._tell = debug_level() >= 4

    @abstractmethod
    def step(self, batch: Batch) -> mx.array:
        """Runs one batch.

        Returns:
            Logits of the batch's logit rows, [rows, vocab] f32; lazy on hosts that pipeline.

        Raises:
            KernelFault: a kernel did something illegal (sim).
        """

    def read(self, logits: mx.array) -> npt.NDArray[np.float32]:
        """Waits for a step's logits.

        Raises:
            HostError: the step failed on the device.
        """
        return np.array(logits)

    def count(self, name: str, detail: object = "") -> None:
        """Counts a launch; with MLXR_DEBUG=4 tells of it on standard error."""
        self.launches[name] += 1
        if self._tell:
            print(f"{self.name}: {name} {detail}", file=sys.stderr)

    @abstractmethod
    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies whole arena blocks, (source, target), in every layer, before the next step."""
