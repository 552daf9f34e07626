"""The times of launches that `mlxr tune` measured and left in the artifact. Nothing else is said to be measured."""

import json
from typing import Any

from mlxr.compiler.artifact import TUNING, Artifact
from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.spec.record import Record


class MeasuredTime(Record):
    """The time that a launch took.

    Attributes:
        time_us: the time.
        scenario: the batch, for people.
        device: the GPU.
        host: the host that launched it.
    """

    time_us: float
    scenario: str
    device: str
    host: str


def measured_times(artifact: Artifact, chosen: ChosenGeometry | None) -> tuple[MeasuredTime, ...]:
    """The times of a kernel with the geometry that it has, one for each batch in which it was timed.

    Args:
        artifact: whose tuning.json is read, if it has one.
        chosen: the kernel's geometry.
    """
    if chosen is None or TUNING not in artifact.files:
        return ()
    tuning: dict[str, Any] = json.loads(artifact.files[TUNING])
    times: dict[str, float] = {}
    for site in tuning["sites"]:
        if site["site"] != chosen.site:
            continue
        for trial in (trial for trials in site["rounds"] for trial in trials):
            if trial["time_us"] is not None and trial["sizes"].items() <= dict(chosen.sizes).items():
                times[site["scenario"]] = trial["time_us"]  # the last round has the choice of all before it
    return tuple(
        MeasuredTime(time_us=time, scenario=scenario, device=tuning["device"], host=tuning["host"])
        for scenario, time in times.items()
    )
