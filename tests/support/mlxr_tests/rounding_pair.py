"""Two hosts with 16-bit activations, and f32 arithmetic with the same weights.

How far rounding moves logits depends on the weights: in bf16 it moves the reference's logits by 0.7 % in most random
models, and by 2.6 % in some. Rounding moves the two hosts' results in different ways, so we do not compare these, but
their distances from f32 arithmetic. The reference rounds after every op and kernels round less often, so kernels should
be nearer.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr_tests.arenas import nan_arena, slots_of, stored_rows
from mlxr_tests.host_pair import HostPair, logits_of
from mlxr_tests.kernel_host import on_cpu
from mlxr_tests.tolerances import Floats, check_as_exact


class RoundingPair(HostPair):
    """Keeps the logits and stored rows of all steps, which `check` compares."""

    def __init__(self, artifact: Artifact, exact: Artifact) -> None:
        """Takes the artifact, and an artifact of the same model with f32 activations and cache."""
        super().__init__(artifact)
        self.exact_arena = nan_arena(Arena(exact.plan.arena))
        self.exact = on_cpu(ReferenceHost)(exact, self.weights, self.exact_arena)
        self.rows: dict[str, list[tuple[Floats, Floats, Floats]]] = defaultdict(list)

    def check(self) -> None:
        """Compares all rows of all steps.

        Raises:
            Mismatch: the host is less exact than the reference.
        """
        for what, rows in self.rows.items():
            check_as_exact(what, *(np.concatenate(each) for each in zip(*rows, strict=True)))

    def _check_logits(self, what: str, batch: Batch, got: Floats, want: Floats) -> None:
        self.rows["logits"].append((got, want, logits_of(self.exact, batch)))
        for layer in range(self.plan.num_layers):
            arenas = (self.arena, self.reference_arena, self.exact_arena)
            slots = slots_of(self.arena, batch, layer)
            rows = [stored_rows(arena, layer, slots) for arena in arenas]
            for store in rows[0]:
                got, want, exact = (of_arena[store] for of_arena in rows)
                self.rows[f"{store} of layer {layer}"].append((got, want, exact))

    def _check_rows(self, what: str, got: Floats, want: Floats, dtype: str) -> None:
        """Does nothing: `check` compares the rows."""

    def _copy(self, copies: Sequence[tuple[int, int]], group: int) -> None:
        super()._copy(copies, group)
        if copies:
            on_cpu(self.exact.copy_blocks)(copies, group)
