"""Chooses launch geometry by measuring: `mlxr tune`.

The searches, in order:

1. Whether the arena is contiguous or paged, where the spec leaves that open: whole steps are timed (search_steps.py).
2. The sizes of each kind of launch: one after the other is varied (search_sizes.py).
3. Thresholds, the rows from which another kernel runs: both kernels are timed (search_thresholds.py).
4. Whether a decode step is one kernel, on hosts that can do that: whole steps again.
5. How many tokens a block of the cache has: whole steps, and prompts (search_blocks.py).

What wins is timed once more against what it replaces. Winners become rules of the artifact's chip, after the rules that
it has: one for each site, and one for all quantised weights. Blocks of another size are in its spec.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mlxr.compiler.artifact import Artifact, Chip
from mlxr.tuning.candidates import CANDIDATES, Candidates
from mlxr.tuning.measure import LaunchTimer
from mlxr.tuning.random_inputs import RandomInputs, decode_batch
from mlxr.tuning.scenario import scenarios
from mlxr.tuning.search_blocks import search_blocks
from mlxr.tuning.search_sizes import SizeSearch
from mlxr.tuning.search_steps import StepSearch
from mlxr.tuning.search_thresholds import search_threshold
from mlxr.tuning.site_tuning import SiteTuning
from mlxr.tuning.step_times import StepTimer
from mlxr.tuning.stopwatch import Stopwatch
from mlxr.tuning.timed_launches import KernelMaker
from mlxr.tuning.workbench import TrialArtifacts, Workbench

_DEFAULT_CACHE_MIB = 64.0


@dataclass(frozen=True)
class Tuning:
    """What was measured, and the artifact with the winners."""

    artifact: Artifact
    sites: tuple[SiteTuning, ...]


class Tuner:
    """Tunes one artifact."""

    def __init__(
        self,
        artifact: Artifact,
        chip: Chip,
        make_kernels: KernelMaker,
        stopwatch: Stopwatch,
        device: str,
        tell: Callable[[str], None],
        step_times: StepTimer | None = None,
        step_kernels: bool = False,
        candidates: Candidates = CANDIDATES,
        context: int = 1,
    ) -> None:
        """Allocates the arena.

        Args:
            artifact: what to tune.
            chip: whose rules are the start.
            make_kernels: of the host.
            stopwatch: times launches.
            device: what the GPU calls itself, for the reasons.
            tell: told of progress.
            step_times: times whole steps; None: they are left alone.
            step_kernels: whether the host can run a step as one kernel.
            candidates: what to try of each size.
            context: most tokens of a sequence in decode.

        Raises:
            ArenaError: the arena does not fit into this machine's memory.
        """
        cache_mib = chip.figures.cache_mib.value if chip.figures else _DEFAULT_CACHE_MIB
        inputs = RandomInputs(artifact, round(cache_mib * 2**20), context)
        timer = LaunchTimer(make_kernels, stopwatch, inputs)
        self._bench = Workbench(TrialArtifacts(artifact, chip), timer, candidates, device, tell)
        self._variants = candidates.variants_of(chip.geometry)
        self._step_times, self._step_kernels = step_times, step_kernels

    def tune(self, context: int) -> Tuning:
        """Measures, and compiles the artifact with the winners.

        Args:
            context: tokens of a sequence in decode.

        Raises:
            RequestError: the artifact does not hold so many tokens.
            HostError: a launch fails with the geometry that the artifact has.
        """
        bench = self._bench
        base = bench.artifacts.compiled()
        decode_batch(base, 1, context)  # refuses a context that is too long before anything is timed
        steps = StepSearch(bench, self._step_times, context) if self._step_times else None
        tunings = steps.search_arena() if steps else []
        most_tokens = min(base.plan.max_tokens, base.plan.arena.context)
        for scenario in scenarios(base.plan.arena.max_sequences, most_tokens, context):
            tunings += SizeSearch(bench, scenario, self._variants).search()
        for name in bench.candidates.thresholds:
            tunings += search_threshold(bench, name)
        if steps and self._step_kernels:
            tunings += steps.search_step_kernel()
        blocks = search_blocks(bench, self._step_times, context) if self._step_times else []
        return Tuning(bench.artifacts.final(tunings), (*tunings, *blocks))
