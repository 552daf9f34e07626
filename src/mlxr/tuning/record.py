"""What the tuner measured, and `tuning.json`, in which an artifact keeps it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

Sizes = dict[str, int]


@dataclass(frozen=True)
class Trial:
    """One candidate, timed.

    Attributes:
        sizes: of its kind of launch.
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


def tuning_json(about: Mapping[str, object], sites: Sequence[SiteTuning]) -> str:
    """The text of tuning.json.

    Args:
        about: the machine, and what was tuned there.
        sites: what was measured.
    """
    found = [asdict(one) | {"changed": one.changed} for one in sites]
    return json.dumps({**about, "sites": found}, indent=1) + "\n"


def tuning_text(sites: Sequence[SiteTuning]) -> str:
    """What was changed and what it brought, for people."""
    lines = []
    for one in sites:
        sizes = ", ".join(f"{name} {one.before[name]} -> {value}" for name, value in one.changed.items())
        stays = f"stays as it is{f', since it cannot be timed: {one.failure}' if one.failure else ''}"
        lines.append(f"{one.site}, {one.scenario}: {f'{sizes} ({one.because})' if sizes else stays}")
    return "\n".join(lines) + "\n"
