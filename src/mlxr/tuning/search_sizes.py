"""Chooses the sizes of each kind of launch in a batch, by varying one size after the other.

First the sizes that decide which kernel runs, since others depend on them, then each other size while the rest keep
their best values so far. All values of a size are timed interleaved, the present one among them, and another wins only
by a margin. There are two passes, since sizes depend on each other; the second is left out where the first changed
nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError, PlanError
from mlxr.tuning.candidates import is_possible
from mlxr.tuning.measure import Candidate
from mlxr.tuning.scenario import Ops, Scenario, kinds_of
from mlxr.tuning.site_tuning import SiteTuning, Sizes, Trial
from mlxr.tuning.stopwatch import TimedTask
from mlxr.tuning.workbench import Workbench

_PASSES = 2


class SizeSearch:
    """Searches the sizes of one scenario."""

    def __init__(self, bench: Workbench, scenario: Scenario, variants: Sequence[str]) -> None:
        """Finds the kinds of launch in the scenario.

        Args:
            bench: what all searches share.
            scenario: the batch, and the sizes to choose.
            variants: the sizes that decide which kernel runs, of which the chip's rules know.
        """
        self._bench, self._scenario, self._variants = bench, scenario, variants
        base = bench.artifacts.compiled()
        kinds = kinds_of(base, scenario.batch(base), scenario.sizes)
        self._sites = {site: SiteTuning(scenario.name, site, kind.sizes, kind.sizes) for site, kind in kinds.items()}
        self._ops = {site: kind.ops for site, kind in kinds.items()}

    def search(self) -> list[SiteTuning]:
        """What was measured and chosen for each kind of launch, which the workbench keeps.

        Raises:
            HostError: a launch fails with the geometry that the artifact has.
        """
        for number in range(_PASSES):
            before = {site: tuning.best for site, tuning in self._sites.items()}
            self._pass(f"{self._scenario.name}, pass {number + 1}")
            if before == {site: tuning.best for site, tuning in self._sites.items()}:
                break
        self._confirm()
        for tuning in self._sites.values():
            self._bench.artifacts.keep(tuning)
        return list(self._sites.values())

    def _pass(self, title: str) -> None:
        """Varies each size once."""
        for name in self._variants:
            if any(name in tuning.best for tuning in self._sites.values()):
                self._bench.tell(f"{title}: {name}")
                self._vary(name)
                self._take_sizes_of_variants()
        for name in dict.fromkeys(name for tuning in self._sites.values() for name in tuning.best):
            if name in self._bench.candidates.values:
                self._bench.tell(f"{title}: {name}")
                self._vary(name)

    def _take_sizes_of_variants(self) -> None:
        """Gives each site the sizes that its kernels have now: those of another variant mean nothing to them."""
        artifact = self._bench.artifacts.compiled(self._changed())
        for site, kind in kinds_of(artifact, self._scenario.batch(artifact), self._scenario.sizes).items():
            tuning = self._sites[site]
            tuning.before = kind.sizes | tuning.before
            tuning.best = kind.sizes

    def _vary(self, name: str) -> None:
        """Times all values of one size for every site that has it, and keeps the best."""
        varied = {site: tuning for site, tuning in self._sites.items() if name in tuning.best}
        present = self._tasks(self._bench.artifacts.compiled(self._changed()), varied)
        candidates: dict[str, list[Candidate]] = {
            site: [(tuning.best, present[site])] for site, tuning in varied.items()
        }
        trials = [
            {
                site: tuning.best | change
                for site, tuning in varied.items()
                if tuning.best[name] != change[name] and is_possible(tuning.best | change)
            }
            for change in self._bench.candidates.changes_of(name)
        ]
        trials = [sizes for sizes in trials if sizes]
        self._bench.timer.build_ahead(self._scenario, self._compiled_each(trials))
        for sizes in trials:
            for site, tasks in self._tasks_with(sizes).items():
                candidates[site].append((sizes[site], tasks))
        for site, tuning in varied.items():
            tuning.choose(self._bench.timer.trials(candidates[site]), self._bench.device)

    def _changed(self) -> dict[str, Sizes]:
        return {site: tuning.changed for site, tuning in self._sites.items()}

    def _compiled_with(self, sizes: Mapping[str, Sizes]) -> Artifact:
        """The spec with the best sizes so far, and with these instead at their sites."""
        best = self._changed()
        return self._bench.artifacts.compiled(best | {site: best[site] | sizes[site] for site in sizes})

    def _compiled_each(self, trials: Sequence[Mapping[str, Sizes]]) -> Iterator[tuple[Artifact, Ops]]:
        for sizes in trials:
            with suppress(PlanError):
                yield self._compiled_with(sizes), {site: self._ops[site] for site in sizes}

    def _tasks(self, artifact: Artifact, sites: Mapping[str, object]) -> dict[str, list[TimedTask]]:
        ops = {site: self._ops[site] for site in sites}
        return self._bench.timer.tasks(artifact, self._scenario, ops)

    def _tasks_with(self, sizes: Mapping[str, Sizes]) -> dict[str, list[TimedTask]]:
        """The launches of sites with these sizes; sites of which there is no such kernel are left out."""
        try:
            return self._tasks(self._compiled_with(sizes), sizes)
        except (PlanError, HostError) as error:
            if len(sizes) == 1:
                self._bench.tell(f"{' and '.join(sizes)} with {next(iter(sizes.values()))} is left out: {error}")
                return {}
        alone = [self._tasks_with({site: sizes[site]}) for site in sizes]
        return {site: tasks for tasks_of in alone for site, tasks in tasks_of.items()}

    def _confirm(self) -> None:
        """Times each winner and what it replaces again; the winner is forgotten where it does not win again."""
        bench = self._bench
        changed = {site: tuning for site, tuning in self._sites.items() if tuning.changed}
        before = self._tasks(bench.artifacts.compiled(), changed)
        after = self._tasks(bench.artifacts.compiled({s: tuning.changed for s, tuning in changed.items()}), changed)
        for site, tuning in changed.items():
            try:
                comparison = bench.timer.compare(list(zip(before[site], after[site], strict=True)))
            except HostError as error:
                bench.tell(f"{site}: {error}")
                bench.forget(tuning)
                continue
            times = comparison.before_us, comparison.after_us
            tuning.rounds.append([Trial(tuning.before, times[0]), Trial(tuning.best, times[1])])
            tuning.because = tuning.reason(*times, bench.device)
            if not comparison.is_faster:
                bench.forget(tuning)
