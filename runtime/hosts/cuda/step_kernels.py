"""The step kernels of a plan that run on this card, and which are missing. Those decode steps are single launches."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import Plan
from mlxr.runtime.hosts.binding import Dims
from mlxr.runtime.hosts.cuda.launch_graph import let_go
from mlxr.runtime.hosts.cuda.step_kernel import LauncherOf, NoStepKernelError, StepImages, StepKernel
from mlxr.runtime.hosts.exchange import BlockingExchange


class StepKernels:
    """The step kernels that are ready.

    Attributes:
        layers: [layers, 8] u32, the constants of all layers, which each of them reads.
        notes: messages for people: which steps should be one kernel but are single launches, and why.
    """

    def __init__(self, built: StepImages, plan: Plan, layers: mx.array, launcher: LauncherOf) -> None:
        """Loads them.

        Args:
            built: the compiled kernels.
            plan: whose decode steps they run.
            layers: the constants of all layers.
            launcher: see `StepKernel.load`.
        """
        failures = list(built.failures)
        self._entries = plan.program("metal").step_kernels
        self._ready: list[StepKernel] = []
        for image in built.images:
            try:
                self._ready.append(StepKernel.load(image, plan, launcher))
            except NoStepKernelError as error:
                failures.append((image.entry.counts, error))
        if self._ready:
            StepKernel.models.add(self)
        self._lacking = [counts for counts, _ in failures]
        self.layers, self.notes = layers, tuple(_notes_of(failures))
        self._waits: list[Callable[[], object]] = []

    def hold(self, arrays: Mapping[str, mx.array]) -> None:
        """Tells each where its weights are; they are kept until this object is gone and all steps have ended.

        Args:
            arrays: all weights, by the plan's buffer names; from now on, the CPU looks at none that a step only reads.
        """
        for kernel in self._ready:
            kernel.hold(arrays)
        held = [arrays[name] for name in {name for kernel in self._ready for name in kernel.entry.weights}]
        if held:
            weakref.finalize(self, let_go, held, self._waits).atexit = False

    def follow(self, wait: Callable[[], object] | None) -> None:
        """Notes what waits for the last step, and so for those before; None: no step runs."""
        self._waits[:] = [] if wait is None else [wait]

    def of(self, dims: Dims) -> StepKernel | None:
        """The one that runs a decode step of these dims; None: there is none."""
        return next((kernel for kernel in self._ready if kernel.takes(dims)), None)

    def lacks(self, dims: Dims) -> bool:
        """Whether the plan wants a step of these dims as one kernel that is not ready."""
        return dims["rows"] == dims["seqs"] and any(dims["seqs"] in counts for counts in self._lacking)

    def keep_those_of_all(self, exchange: BlockingExchange) -> None:
        """Keeps those that are ready at every process of a stage: in a step, all must sum in the same way.

        Args:
            exchange: of the stage, all of which call this.
        """
        own = {kernel.entry.counts for kernel in self._ready}
        here = np.array([[entry.counts in own for entry in self._entries]], np.float32)
        everywhere = here.copy()
        if self._entries:
            exchange.all_sum(here, everywhere)
        of_all = everywhere[0] == exchange.size
        kept = {entry.counts for entry, has_all in zip(self._entries, of_all, strict=True) if has_all}
        self._ready = [kernel for kernel in self._ready if kernel.entry.counts in kept]


def _notes_of(failures: Sequence[tuple[range, NoStepKernelError]]) -> Iterator[str]:
    for why in dict.fromkeys(str(error) for _, error in failures):
        counts = [str(count) for counts, error in failures if str(error) == why for count in counts]
        several = (
            f"{', '.join(counts[:-1])} and {counts[-1]} sequences" if len(counts) > 1 else f"{counts[0]} sequence(s)"
        )
        yield f"decode steps of {several} are launches and not one kernel: {why}"
