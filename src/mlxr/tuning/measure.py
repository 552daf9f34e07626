"""Times the launches of candidates: all values of a size interleaved, then the winner against the present value."""

import os
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from mlxr.compiler.artifact import Artifact, Launch
from mlxr.compiler.errors import HostError
from mlxr.tuning.random_inputs import RandomInputs
from mlxr.tuning.scenario import Ops, Scenario
from mlxr.tuning.site_tuning import MARGIN, Sizes, Trial
from mlxr.tuning.stopwatch import Stopwatch, TimedTask
from mlxr.tuning.timed_launches import KernelMaker, TimedLaunches, running, with_kernels_of

Candidate = tuple[Sizes, Sequence[TimedTask]]
"""Sizes, and what is timed for them: a task for each kind of op of a site."""

_COMPARISONS = 2


@dataclass(frozen=True)
class Comparison:
    """The times of the present launches and of their replacement, each the median of several rounds.

    Attributes:
        is_faster: whether the replacement wins by the margin and in nearly every round.
    """

    before_us: float
    after_us: float
    is_faster: bool


class LaunchTimer:
    """Builds kernels and times launches on one GPU."""

    def __init__(self, make_kernels: KernelMaker, stopwatch: Stopwatch, inputs: RandomInputs) -> None:
        """Prepares.

        Args:
            make_kernels: of the host.
            stopwatch: times tasks.
            inputs: of the launches.
        """
        self._make_kernels, self._stopwatch, self._inputs = make_kernels, stopwatch, inputs

    def tasks(self, artifact: Artifact, scenario: Scenario, ops: Ops) -> dict[str, list[TimedTask]]:
        """The ops of each site in a batch, each with all its launches as one task.

        Raises:
            HostError: a kernel cannot be built.
        """
        wanted = _launches(artifact, scenario, ops)
        launches_of: dict[str, list[Launch]] = {}
        for launch in wanted:
            launches_of.setdefault(launch.op, []).append(launch)
        kernels = self._make_kernels(with_kernels_of(artifact, wanted))
        timed = TimedLaunches(artifact, kernels, self._inputs, scenario.batch(artifact))
        return {site: [timed.task(launches_of[op]) for op in names] for site, names in ops.items()}

    def build_ahead(self, scenario: Scenario, artifacts: Iterable[tuple[Artifact, Ops]]) -> None:
        """Builds the kernels of several artifacts side by side, since building one takes longer than timing it.

        Hosts that build kernels before they launch them keep what they built. What fails here fails again when the
        candidate is timed, and is reported there.
        """

        def build(artifact: Artifact, ops: Ops) -> None:
            with suppress(HostError):
                self._make_kernels(with_kernels_of(artifact, _launches(artifact, scenario, ops)))

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            for artifact, ops in artifacts:
                pool.submit(build, artifact, ops)

    def trials(self, candidates: Sequence[Candidate]) -> list[Trial]:
        """Times all candidates interleaved; the times of a candidate's tasks are added up."""
        totals = [0.0] * len(candidates)
        errors: list[str | None] = [None] * len(candidates)
        for group in zip(*(tasks for _, tasks in candidates), strict=True):
            for index, time_us in enumerate(self._stopwatch.times_us(group)):
                if isinstance(time_us, HostError):
                    errors[index] = errors[index] or str(time_us)
                else:
                    totals[index] += time_us
        return [
            Trial(sizes, None if error else total, error)
            for (sizes, _), total, error in zip(candidates, totals, errors, strict=True)
        ]

    def compare(self, pairs: Sequence[tuple[TimedTask, TimedTask]]) -> Comparison:
        """Compares present launches with their replacements; each side is the sum of several tasks.

        Where another program keeps the machine busy, nothing wins nearly every round.

        Args:
            pairs: the present task, and the one that is to replace it.

        Raises:
            HostError: one of them cannot run.
        """
        before: list[float] = []
        after: list[float] = []
        for _ in range(_COMPARISONS):
            rounds = [[_known(times) for times in self._stopwatch.rounds_us(pair)] for pair in pairs]
            before += [sum(times) for times in zip(*(old for old, _ in rounds), strict=True)]
            after += [sum(times) for times in zip(*(new for _, new in rounds), strict=True)]
        before_us, after_us = statistics.median(before), statistics.median(after)
        wins = sum(new < old for old, new in zip(before, after, strict=True))
        nearly_all = len(before) - len(before) // 7
        return Comparison(before_us, after_us, wins >= nearly_all and after_us < (1 - MARGIN) * before_us)


def _launches(artifact: Artifact, scenario: Scenario, ops: Ops) -> list[Launch]:
    """All launches of these ops in a batch, in order."""
    wanted = {op for names in ops.values() for op in names}
    return [launch for launch in running(artifact, scenario.batch(artifact)) if launch.op in wanted]


def _known(rounds: list[float] | HostError) -> list[float]:
    if isinstance(rounds, HostError):
        raise rounds
    return rounds
