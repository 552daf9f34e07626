"""Chooses launch geometry by measuring: `mlxr tune`.

First whole steps with a contiguous and a paged arena, where the spec leaves that open. Then, for each kind of launch (a
site of the geometry rules), whether it is made by matrix instructions, and one size after the other is varied while the
others keep their best values so far; all values of a size are timed interleaved, the current one among them, and
another one wins only by a margin. Two passes, since sizes depend on each other; the second is left out where the first
changed nothing. Then thresholds: both sides of each are timed at several numbers of rows. Last, on hosts that can run a
decode step as one kernel, whole steps as launches and as kernels of several sizes. What wins is timed against what it
replaces once more, and launches must win nearly every round, which they do not where another program keeps the machine
busy.

Winners become rules of the artifact's chip, one for each site (of quantised weights' threshold one for all), behind
those that the chip has.
"""

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from mlxr.compiler.artifact import Artifact, Chip, Launch, Target
from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError, PlanError
from mlxr.runtime.hosts.batch import Batch
from mlxr.tuning.candidates import (
    CANDIDATES,
    EVERYWHERE,
    Candidates,
    Scenario,
    is_possible,
    rule_for,
    scenarios,
)
from mlxr.tuning.pieces import KernelMaker, Pieces, running, with_kernels_of
from mlxr.tuning.random_inputs import RandomInputs, decode_batch, prefill_batch
from mlxr.tuning.record import SiteTuning, Sizes, Trial
from mlxr.tuning.step_times import StepTimes
from mlxr.tuning.stopwatch import Piece, Stopwatch

MARGIN = 0.02
"""What share of the time a candidate must save to be chosen: less than this is noise."""
PASSES = 2
_NEVER = 1_000_000
_DEFAULT_CACHE_MIB = 64.0

Ops = Mapping[str, Sequence[str]]
"""The ops to time of each site: one for each kind, by name."""
Candidate = tuple[Sizes, Sequence[Piece]]


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
        step_times: StepTimes | None = None,
        step_kernels: bool = False,
        candidates: Candidates = CANDIDATES,
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

        Raises:
            ArenaError: the arena does not fit into this machine's memory.
        """
        self._make, self._watch, self._device, self._tell = make_kernels, stopwatch, device, tell
        self._step_times, self._step_kernels, self._candidates = step_times, step_kernels, candidates
        self._spec, self._chip, self._targets = artifact.spec, chip, artifact.plan.targets
        cache_mib = chip.figures.cache_mib.value if chip.figures else _DEFAULT_CACHE_MIB
        self._inputs = RandomInputs(artifact, round(cache_mib * 2**20))
        self._found: dict[str, Sizes] = {}
        self._artifacts: dict[str, Artifact] = {}

    def tune(self, context: int) -> Tuning:
        """Measures, and compiles the artifact with the winners.

        Args:
            context: tokens of a sequence in decode.

        Raises:
            RequestError: the artifact does not hold so many tokens.
            HostError: a launch fails with the geometry that the artifact has.
        """
        plan = self._compiled({}).plan
        decode_batch(self._compiled({}), 1, context)  # refuses what would be refused after the arena is timed
        done = self._tune_arena(context)
        for scenario in scenarios(plan.arena.max_sequences, min(plan.max_tokens, plan.arena.context), context):
            done += self._tune_scenario(scenario)
        for threshold in self._candidates.thresholds:
            done += self._tune_threshold(threshold)
        done += self._tune_step(context)
        rules = [rule_for(one.site, one.changed, one.because) for one in done if one.changed]
        return Tuning(self._with_rules(rules, self._targets), tuple(done))

    def _with_rules(self, rules: Sequence[GeometryRule], targets: Sequence[Target]) -> Artifact:
        chip = self._chip.model_copy(update={"geometry": (*self._chip.geometry, *rules)})
        return compile_spec(self._spec, targets=targets, chip=chip).artifact

    def _compiled(self, sizes: Mapping[str, Sizes]) -> Artifact:
        """The spec with what was found so far, and these sizes of these sites, for GPUs alone."""
        both = {site: self._found.get(site, {}) | sizes.get(site, {}) for site in {**self._found, **sizes}}
        rules = tuple(rule_for(site, one, "a candidate") for site, one in sorted(both.items()) if one)
        key = json.dumps([rule.model_dump() for rule in rules])
        if key not in self._artifacts:
            self._artifacts[key] = self._with_rules(rules, ("metal",))
        return self._artifacts[key]

    def _tune_scenario(self, scenario: Scenario) -> list[SiteTuning]:
        base = self._compiled({})
        kinds = _kinds(base, _batch(base, scenario), scenario.sizes)
        sites = {site: SiteTuning(scenario.name, site, sizes, sizes) for site, (sizes, _) in kinds.items()}
        ops = {site: names for site, (_, names) in kinds.items()}
        for number in range(PASSES):
            before = {site: one.best for site, one in sites.items()}
            pass_of = f"{scenario.name}, pass {number + 1}"
            for name in self._candidates.variants_of(self._chip.geometry):
                if any(name in one.best for one in sites.values()):
                    self._tell(f"{pass_of}: {name}")
                    self._vary(scenario, name, sites, ops)
                    self._take_names(scenario, sites)
            for name in dict.fromkeys(name for one in sites.values() for name in one.best):
                if name in self._candidates.values:
                    self._tell(f"{pass_of}: {name}")
                    self._vary(scenario, name, sites, ops)
            if before == {site: one.best for site, one in sites.items()}:
                break
        self._confirm(scenario, sites, ops)
        for site, one in sites.items():
            self._found[site] = self._found.get(site, {}) | one.changed
        return list(sites.values())

    def _take_names(self, scenario: Scenario, sites: Mapping[str, SiteTuning]) -> None:
        """Gives each site the sizes that its kernels have now: others mean nothing to another variant."""
        base = self._compiled({site: one.changed for site, one in sites.items()})
        for site, (sizes, _) in _kinds(base, _batch(base, scenario), scenario.sizes).items():
            sites[site].before = sizes | sites[site].before
            sites[site].best = sizes

    def _confirm(self, scenario: Scenario, sites: Mapping[str, SiteTuning], ops: Ops) -> None:
        """Times each winner and what it replaces again; the winner is forgotten where it does not win again."""
        changed = {site: one for site, one in sites.items() if one.changed}
        of_changed = {site: ops[site] for site in changed}
        before = self._pieces(self._compiled({}), scenario, of_changed)
        after = self._pieces(self._compiled({site: one.changed for site, one in changed.items()}), scenario, of_changed)
        for site, one in changed.items():
            try:
                old, new, wins = self._again(list(zip(before[site], after[site], strict=True)))
            except HostError as error:
                self._tell(f"{site}: {error}")
                self._forget(one)
                continue
            one.rounds.append([Trial(one.before, old), Trial(one.best, new)])
            one.because = f"{new:.2f} us instead of {old:.2f} us with {one.scenario} on {self._device}"
            if not wins:
                self._forget(one)

    def _again(self, pairs: Sequence[tuple[Piece, Piece]]) -> tuple[float, float, bool]:
        """Times what was and what won, each the sum of several pieces, and whether it wins clearly: nearly always."""
        old: list[float] = []
        new: list[float] = []
        for _ in range(2):
            rounds = [self._watch.rounds_us(pair) for pair in pairs]
            for total, side in ((old, 0), (new, 1)):
                total += [sum(times) for times in zip(*(_known(one[side]) for one in rounds), strict=True)]
        before, after = statistics.median(old), statistics.median(new)
        wins = sum(b < a for a, b in zip(old, new, strict=True))
        return before, after, wins >= len(old) - len(old) // 7 and after < (1 - MARGIN) * before

    def _forget(self, one: SiteTuning) -> None:
        self._tell(f"{one.site}: not clearly faster when timed again, stays as it is")
        one.best, one.because = one.before, ""

    def _vary(self, scenario: Scenario, name: str, sites: Mapping[str, SiteTuning], ops: Ops) -> None:
        """Times all values of one size for every site that has it, and keeps the best."""
        best = {site: one.changed for site, one in sites.items()}
        mine = {site: one for site, one in sites.items() if name in one.best}
        current = self._pieces(self._compiled(best), scenario, {site: ops[site] for site in mine})
        candidates: dict[str, list[Candidate]] = {site: [(one.best, current[site])] for site, one in mine.items()}
        changes = [
            {
                site: one.best | change
                for site, one in mine.items()
                if one.best[name] != change[name] and is_possible(one.best | change)
            }
            for change in self._candidates.changes_of(name)
        ]
        changes = [wanted for wanted in changes if wanted]
        self._build_ahead(scenario, best, changes, ops)
        for wanted in changes:
            for site, pieces in self._made(scenario, best, wanted, {site: ops[site] for site in wanted}).items():
                candidates[site].append((wanted[site], pieces))
        for site, one in mine.items():
            self._choose(one, self._timed(candidates[site]))

    def _build_ahead(
        self, scenario: Scenario, best: Mapping[str, Sizes], changes: Sequence[Mapping[str, Sizes]], ops: Ops
    ) -> None:
        """Builds the kernels of all candidates side by side; hosts that build ahead of launches keep what they built.

        What goes wrong does so again when the candidate's turn comes.
        """

        def build(artifact: Artifact, wanted: Mapping[str, Sizes]) -> None:
            launches = _launches(artifact, scenario, {site: ops[site] for site in wanted})
            with suppress(HostError):
                self._make(with_kernels_of(artifact, launches))

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            for wanted in changes:
                with suppress(PlanError):
                    pool.submit(build, self._compiled(_with(best, wanted)), wanted)

    def _made(
        self, scenario: Scenario, best: Mapping[str, Sizes], wanted: Mapping[str, Sizes], ops: Ops
    ) -> dict[str, list[Piece]]:
        """The launches of sites with the wanted sizes; those of which there is no such kernel are left out."""
        try:
            return self._pieces(self._compiled(_with(best, wanted)), scenario, ops)
        except (PlanError, HostError) as error:
            if len(wanted) == 1:
                self._tell(f"{' and '.join(wanted)} with {next(iter(wanted.values()))} is left out: {error}")
                return {}
        alone = [self._made(scenario, best, {site: wanted[site]}, {site: ops[site]}) for site in wanted]
        return {site: pieces for one in alone for site, pieces in one.items()}

    def _tune_arena(self, context: int) -> list[SiteTuning]:
        """Whether the arena is contiguous or paged, where that is open."""
        plan = self._compiled({}).plan
        if plan.arena_chosen is None:
            return []
        other = 0 if plan.arena.mode == "contiguous" else plan.arena.context
        return self._tune_whole(plan.arena_chosen, [{"contiguous_context": other}], context)

    def _tune_step(self, context: int) -> list[SiteTuning]:
        """Whether a step of one token is one kernel, and of how many threads."""
        chosen = self._compiled({}).plan.step("decode").chosen
        if not self._step_kernels or chosen is None:
            return []
        changes = self._candidates.changes_of("step_threads")
        others = [change for change in changes if change["step_threads"] != chosen.sizes["step_threads"]]
        return self._tune_whole(chosen, others, context)

    def _tune_whole(self, chosen: ChosenGeometry, changes: Sequence[Sizes], context: int) -> list[SiteTuning]:
        """Chooses by the times of whole steps."""
        if self._step_times is None:
            return []
        self._tell(f"whole steps: {next(iter(changes[0]))}")
        now, context = dict(chosen.sizes), self._step_times.context_of(self._compiled({}), context)
        one = SiteTuning(f"whole steps of 1 sequence of {context} tokens", chosen.site, now, now)
        self._time_whole(one, [now, *(now | change for change in changes if is_possible(now | change))], context)
        if one.changed:
            self._time_whole(one, [now, one.best], context)
        self._found[one.site] = one.changed
        return [one]

    def _time_whole(self, one: SiteTuning, candidates: Sequence[Sizes], context: int) -> None:
        """Takes the best candidate, or the first where none is clearly better; if that cannot run, the best other."""
        assert self._step_times is not None, "asked before"
        times = self._step_times.times_us([self._compiled({one.site: sizes}) for sizes in candidates], context)
        trials = [
            Trial(sizes, None, str(time)) if isinstance(time, HostError) else Trial(sizes, time)
            for sizes, time in zip(candidates, times, strict=True)
        ]
        one.best, one.because = candidates[0], ""
        if trials[0].error is None:
            self._choose(one, trials)
            return
        one.rounds.append(trials)
        known = [(trial.time_us, trial.sizes) for trial in trials if trial.time_us is not None]
        if known:
            time, one.best = min(known, key=lambda found: found[0])
            one.because = f"{time:.2f} us with {one.scenario} on {self._device}; what was there: {trials[0].error}"
        else:
            one.failure = str(trials[0].error)

    def _choose(self, one: SiteTuning, trials: list[Trial]) -> None:
        one.rounds.append(trials)
        first = _time(one, trials[0])
        best = min((trial for trial in trials if trial.time_us is not None), key=lambda trial: trial.time_us or 0.0)
        if _time(one, best) < (1 - MARGIN) * first:
            one.best = best.sizes
            one.because = f"{_time(one, best):.2f} us instead of {first:.2f} us with {one.scenario} on {self._device}"

    def _timed(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """Times of all candidates, interleaved; those of a site's several kinds of op are added up."""
        totals = [0.0] * len(candidates)
        errors: list[str | None] = [None] * len(candidates)
        for group in zip(*(pieces for _, pieces in candidates), strict=True):
            for index, time in enumerate(self._watch.times_us(group)):
                if isinstance(time, HostError):
                    errors[index] = errors[index] or str(time)
                else:
                    totals[index] += time
        return [
            Trial(sizes, None if error else total, error)
            for (sizes, _), total, error in zip(candidates, totals, errors, strict=True)
        ]

    def _tune_threshold(self, name: str) -> list[SiteTuning]:
        """Finds from how many rows on the other side of a threshold is the faster one."""
        base = self._compiled({})
        most = min(base.plan.max_tokens, base.plan.arena.context)
        sites: dict[str, SiteTuning] = {}
        timed: dict[str, dict[int, list[tuple[Piece, Piece]]]] = {}
        for rows in (rows for rows in self._candidates.threshold_rows if rows <= most):
            self._tell(f"{rows} rows: {name}")
            scenario = Scenario(f"{rows} rows", (name,), 0, rows, every_row=rows <= base.plan.max_rows)
            kinds = _kinds(base, _batch(base, scenario), scenario.sizes)
            kinds = self._quantised_kind(base, name) if self._candidates.thresholds[name].shared else kinds
            ops = {site: names for site, (_, names) in kinds.items()}
            below = self._pieces(self._compiled({key: {name: _NEVER} for key in ops}), scenario, ops)
            above = self._pieces(self._compiled({key: {name: 1} for key in ops}), scenario, ops)
            for site, (sizes, _) in kinds.items():
                size = {name: sizes[name]}
                one = sites.setdefault(site, SiteTuning("2 rows and more", site, size, size))
                both = self._timed([({name: rows + 1}, below[site]), ({name: rows}, above[site])])
                one.rounds.append(both)
                if not any(trial.error for trial in both):
                    timed.setdefault(site, {})[rows] = list(zip(below[site], above[site], strict=True))
        for one in sites.values():
            _choose_threshold(one, name, self._device)
            old, new = (rows or _NEVER for rows in (one.before[name], one.best[name]))
            # The rows for which the threshold decides otherwise now: what ran, and what runs.
            turned = [
                (above, below) if new > old else (below, above)
                for rows, pairs in timed.get(one.site, {}).items()
                for below, above in pairs
                if (rows >= old) != (rows >= new)
            ]
            if turned and not self._again(turned)[2]:
                self._forget(one)
            self._found[one.site] = self._found.get(one.site, {}) | one.changed
        return list(sites.values())

    def _quantised_kind(self, base: Artifact, name: str) -> dict[str, tuple[Sizes, list[str]]]:
        """As `_kinds`, for what MLX multiplies by unpacked weights: all of it, by its ops in one layer of each kind.

        Unpacking counts, though a host with memory to spare does it once: there MLX is faster from fewer rows on.
        """
        known = [kernel.chosen.sizes for kernel in base.plan.kernels if kernel.chosen]
        sizes = next(({name: one[name]} for one in known if name in one), None)
        if sizes is None:
            return {}
        always = self._compiled({EVERYWHERE: {name: 1}}).plan
        chosen = {kernel.name: kernel.chosen for kernel in always.kernels}
        layers: dict[str, list[tuple[str, str]]] = {}
        for launch in always.step("prefill").launches:
            if (one := chosen[launch.kernel]) and name in one.sizes:
                layers.setdefault(".".join(launch.op.split(".")[:2]), []).append((launch.op, launch.kernel))
        kinds = {tuple(kernel for _, kernel in layer): layer for layer in reversed(layers.values())}
        return {EVERYWHERE: (sizes, list(dict.fromkeys(op for layer in kinds.values() for op, _ in layer)))}

    def _pieces(self, artifact: Artifact, scenario: Scenario, ops: Ops) -> dict[str, list[Piece]]:
        """The ops of each site in a batch, each with all its launches as one piece."""
        found = _launches(artifact, scenario, ops)
        launches: dict[str, list[Launch]] = {}
        for launch in found:
            launches.setdefault(launch.op, []).append(launch)
        kernels = self._make(with_kernels_of(artifact, found))
        pieces = Pieces(artifact, kernels, self._inputs, _batch(artifact, scenario))
        return {site: [pieces.piece(launches[op]) for op in names] for site, names in ops.items()}


def _with(best: Mapping[str, Sizes], wanted: Mapping[str, Sizes]) -> dict[str, Sizes]:
    """The best sizes so far, save those that are wanted at these sites."""
    return {**best, **{site: best[site] | sizes for site, sizes in wanted.items()}}


def _launches(artifact: Artifact, scenario: Scenario, ops: Ops) -> list[Launch]:
    """All launches of these ops in a batch."""
    wanted = {op for names in ops.values() for op in names}
    return [launch for launch in running(artifact, _batch(artifact, scenario)) if launch.op in wanted]


def _kinds(artifact: Artifact, batch: Batch, wanted: tuple[str, ...]) -> dict[str, tuple[Sizes, list[str]]]:
    """The sites of a batch that have some of these sizes: those that they have, and an op of each kind."""
    kernels = {kernel.name: kernel.chosen for kernel in artifact.plan.kernels}
    ops: dict[str, list[str]] = {}
    for launch in running(artifact, batch):
        ops.setdefault(launch.op, []).append(launch.kernel)
    found: dict[str, tuple[Sizes, list[str]]] = {}
    seen = set()
    for op, names in ops.items():
        chosen = [one for name in names if (one := kernels[name])]
        sizes = {name: n for one in chosen for name, n in one.sizes.items() if name in wanted}
        if sizes and tuple(names) not in seen:
            seen.add(tuple(names))
            found.setdefault(chosen[0].site, (sizes, []))[1].append(op)
    return found


def _batch(artifact: Artifact, scenario: Scenario) -> Batch:
    if scenario.sequences:
        return decode_batch(artifact, scenario.sequences, scenario.tokens)
    return prefill_batch(artifact, scenario.tokens, "all" if scenario.every_row else "last")


def _known(rounds: list[float] | HostError) -> list[float]:
    if isinstance(rounds, HostError):
        raise rounds
    return rounds


def _time(one: SiteTuning, trial: Trial) -> float:
    if trial.time_us is None:
        raise HostError(f"{one.site} cannot run with {trial.sizes}, as the artifact has it: {trial.error}")
    return trial.time_us


def _choose_threshold(one: SiteTuning, name: str, device: str) -> None:
    """Takes the fewest rows from which on the other side is never slower, if the present threshold is clearly wrong."""
    times = [(above.sizes[name], below.time_us, above.time_us) for below, above in one.rounds]
    known = [(rows, below, above) for rows, below, above in times if below is not None and above is not None]
    present = one.before[name] or _NEVER
    wrong = any(
        (above if rows >= present else below) * (1 - MARGIN) > min(below, above) for rows, below, above in known
    )
    if not wrong:
        return
    found = known[-1][0] + 1
    for rows, below, above in reversed(known):
        if above > below:
            break
        found = rows
    one.best = {name: found}
    one.because = f"what runs from {found} rows on is faster there on {device}"
