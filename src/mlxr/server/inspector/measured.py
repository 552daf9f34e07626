"""The times of launches that were measured: by `mlxr tune`, which left them in the artifact, or here, on host cpu.

Nothing else is said to be measured.
"""

import json
from typing import Any

from mlxr.compiler.artifact import TUNING, Artifact
from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.spec.record import Record
from mlxr.runtime.hosts.cpu.timed_calls import TimedCalls


class MeasuredTime(Record):
    """The time that a launch took.

    Attributes:
        time_us: the time.
        scenario: the batch, for people.
        device: the GPU, or the threads of the CPU.
        host: the host that launched it.
    """

    time_us: float
    scenario: str
    device: str
    host: str


def timed_call(timed: TimedCalls | None, index: int) -> tuple[MeasuredTime, ...]:
    """The time of a call of a C program; nothing, if none was measured, or it did not run then.

    Args:
        timed: the calls of its phase.
        index: the call's.
    """
    if timed is None or not timed.times_us[index]:
        return ()
    threads = f"{timed.threads} thread{'s' if timed.threads > 1 else ''} of this CPU"
    return (MeasuredTime(time_us=timed.times_us[index], scenario=timed.batch, device=threads, host="cpu"),)


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
