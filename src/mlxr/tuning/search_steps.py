"""Chooses sizes by the times of whole decode steps: the form of the arena, and a step as one kernel."""

from collections.abc import Sequence

from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.errors import HostError
from mlxr.tuning.candidates import is_possible
from mlxr.tuning.site_tuning import SiteTuning, Sizes, Trial
from mlxr.tuning.step_times import StepTimer
from mlxr.tuning.workbench import Workbench


class StepSearch:
    """Searches by the times of whole decode steps of one sequence."""

    def __init__(self, bench: Workbench, step_times: StepTimer, context: int) -> None:
        """Prepares.

        Args:
            bench: what all searches share.
            step_times: times whole steps.
            context: tokens of the sequence; fewer where it could not grow from there.
        """
        self._bench, self._step_times, self._context = bench, step_times, context

    def search_arena(self) -> list[SiteTuning]:
        """Whether the arena is contiguous or paged; empty where the spec decides it."""
        plan = self._bench.artifacts.compiled().plan
        if plan.arena_chosen is None:
            return []
        other = 0 if plan.arena.mode == "contiguous" else plan.arena.context
        return [self._search(plan.arena_chosen, [{"contiguous_context": other}])]

    def search_step_kernel(self) -> list[SiteTuning]:
        """Whether a step of one token is one kernel, and of how many threads."""
        chosen = self._bench.artifacts.compiled().plan.program("metal").phase("decode").chosen
        if chosen is None:
            return []
        changes = self._bench.candidates.changes_of("step_threads")
        others = [change for change in changes if change["step_threads"] != chosen.sizes["step_threads"]]
        return [self._search(chosen, others)]

    def _search(self, chosen: ChosenGeometry, changes: Sequence[Sizes]) -> SiteTuning:
        """Times the present sizes and each change of them, and the winner against the present ones again."""
        bench, present = self._bench, dict(chosen.sizes)
        bench.tell(f"whole steps: {next(iter(changes[0]))}")
        context = self._step_times.context_of(bench.artifacts.compiled(), self._context)
        tuning = SiteTuning(f"whole steps of 1 sequence of {context} tokens", chosen.site, present, present)
        others = [present | change for change in changes]
        self._time(tuning, [present, *filter(is_possible, others)], context)
        if tuning.changed:
            self._time(tuning, [present, tuning.best], context)
        bench.artifacts.keep(tuning)
        return tuning

    def _time(self, tuning: SiteTuning, candidates: Sequence[Sizes], context: int) -> None:
        """Takes the best candidate, or the first where none is clearly better; if that cannot run, the best other."""
        artifacts = [self._bench.artifacts.compiled({tuning.site: sizes}) for sizes in candidates]
        trials = [
            Trial(sizes, None, str(time_us)) if isinstance(time_us, HostError) else Trial(sizes, time_us)
            for sizes, time_us in zip(candidates, self._step_times.times_us(artifacts, context), strict=True)
        ]
        present, device = trials[0], self._bench.device
        tuning.best, tuning.because = present.sizes, ""
        if present.error is None:
            tuning.choose(trials, device)
            return
        tuning.rounds.append(trials)
        timed = [(trial.time_us, trial.sizes) for trial in trials if trial.time_us is not None]
        if timed:
            time_us, tuning.best = min(timed, key=lambda pair: pair[0])
            tuning.because = f"{time_us:.2f} us with {tuning.scenario} on {device}; the form before: {present.error}"
        else:
            tuning.failure = present.error
