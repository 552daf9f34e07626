"""The times that the tuner measures for one kind of launch, its choice, and both as `tuning.json` and for people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from mlxr.compiler.errors import HostError

Sizes = dict[str, int]
"""Sizes of the geometry by flat name."""
MARGIN = 0.02
"""The share of the time that a candidate must save to be chosen: less than this is noise."""


@dataclass(frozen=True)
class Trial:
    """One candidate, timed.

    Attributes:
        sizes: the candidate's, of its kind of launch.
        time_us: None where it could not run.
        error: why it could not.
    """

    sizes: Sizes
    time_us: float | None
    error: str | None = None


@dataclass
class SiteTuning:
    """One kind of launch in one batch; it fills while it is tuned.

    Attributes:
        scenario: the batch, for people.
        site: the launches, as geometry rules name them, or all.
        before: sizes that the artifact had.
        best: the best sizes so far.
        because: why they are the best.
        failure: why nothing could be timed.
        rounds: the candidates, those together that were timed interleaved, the one that was the best so far first.
    """

    scenario: str
    site: str
    before: Sizes
    best: Sizes
    because: str = ""
    failure: str = ""
    rounds: list[list[Trial]] = field(default_factory=list)

    @property
    def changed(self) -> Sizes:
        """The sizes that are to be others than before."""
        return {name: value for name, value in self.best.items() if value != self.before[name]}

    def choose(self, trials: Sequence[Trial], device: str) -> None:
        """Keeps a round of trials, and takes the fastest if it beats the first, the present one, by the margin.

        Args:
            trials: of candidates that were timed interleaved.
            device: what the GPU calls itself, for the reason.

        Raises:
            HostError: the first could not run.
        """
        self.rounds.append(list(trials))
        timed = [(trial.time_us, trial) for trial in trials if trial.time_us is not None]
        present = trials[0]
        if present.time_us is None:
            raise HostError(f"{self.site} cannot run with {present.sizes}, as the artifact has it: {present.error}")
        time_us, fastest = min(timed, key=lambda pair: pair[0])
        if time_us < (1 - MARGIN) * present.time_us:
            self.best = fastest.sizes
            self.because = self.reason(present.time_us, time_us, device)

    def reason(self, before_us: float, after_us: float, device: str) -> str:
        """Why the best sizes are the best, for people."""
        return f"{after_us:.2f} us instead of {before_us:.2f} us with {self.scenario} on {device}"


def tuning_json(about: Mapping[str, object], sites: Sequence[SiteTuning]) -> str:
    """The text of tuning.json, in which an artifact keeps what was measured.

    Args:
        about: the machine, and what was tuned there.
        sites: what was measured.
    """
    measured = [asdict(site) | {"changed": site.changed} for site in sites]
    return json.dumps({**about, "sites": measured}, indent=1) + "\n"


def tuning_text(sites: Sequence[SiteTuning]) -> str:
    """What was changed and what it gained, for people."""
    return "\n".join(map(_line, sites)) + "\n"


def _line(site: SiteTuning) -> str:
    sizes = ", ".join(f"{name} {site.before[name]} -> {value}" for name, value in site.changed.items())
    if sizes:
        outcome = f"{sizes} ({site.because})"
    elif site.failure:
        outcome = f"stays as it is, since it cannot be timed: {site.failure}"
    else:
        outcome = "stays as it is"
    return f"{site.site}, {site.scenario}: {outcome}"
