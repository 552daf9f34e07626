"""The launches of a model that are furthest from their roofline, of those whose times were measured.

On a GPU, times are those of `mlxr tune`, and limits those of the chip. Nobody knows the figures of a CPU: there, the
limit is what the best of its own calls reach, in bytes or in FLOPs a second. Calls that read little are left out: they
wait for threads, not for memory.
"""

from collections.abc import Iterator, Mapping, Sequence

from mlxr.compiler.spec.record import Record
from mlxr.inspect.layers import without_layer
from mlxr.inspect.roofline import call_works
from mlxr.runtime.hosts.cpu.timed_calls import TimedCalls
from mlxr.server.inspector.inspector import Inspector
from mlxr.server.inspector.measured import measured_times

_MOST = 5
_LEAST_BYTES = 1 << 14
"""A call that moves less does not tell what memory gives."""


class FarLaunch(Record):
    """Launches that are alike in all layers.

    Attributes:
        phase: `decode` or `prefill`.
        op: what they compute, without its layer.
        kernel: that computes it.
        times: how many there are in a step.
        time_us, limit_us: of one, measured, and at the limit.
        share_of_limit: the limit divided by the time.
        lost_us: what all of them take beyond their limits in a step.
    """

    phase: str
    op: str
    kernel: str
    times: int
    time_us: float
    limit_us: float
    share_of_limit: float
    lost_us: float


class _Timed(Record):
    phase: str
    op: str
    kernel: str
    time_us: float
    limit_us: float


def far_launches(inspector: Inspector, timed: Mapping[str, TimedCalls]) -> list[FarLaunch]:
    """Those that lose most time in a step of their phase, the greatest loss first.

    Args:
        inspector: of the artifact.
        timed: measured times of the calls of target cpu, by phase; empty: none were measured.
    """
    launches = list(_of_cpu(inspector, timed) if timed else _of_gpu(inspector))
    alike: dict[tuple[str, str, str], list[_Timed]] = {}
    for launch in launches:
        alike.setdefault((launch.phase, launch.op, launch.kernel), []).append(launch)
    far = [_together(group) for group in alike.values()]
    return sorted(far, key=lambda launch: -launch.lost_us)[:_MOST]


def _together(group: Sequence[_Timed]) -> FarLaunch:
    time, limit = (sum(getattr(one, name) for one in group) for name in ("time_us", "limit_us"))
    first, count = group[0], len(group)
    return FarLaunch(
        phase=first.phase,
        op=first.op,
        kernel=first.kernel,
        times=count,
        time_us=time / count,
        limit_us=limit / count,
        share_of_limit=limit / time if time else 1.0,
        lost_us=max(0.0, time - limit),
    )


def _of_cpu(inspector: Inspector, timed: Mapping[str, TimedCalls]) -> Iterator[_Timed]:
    for phase, calls in timed.items():
        rows = {row.index: row for row in inspector.calls if row.phase == phase}
        works = call_works(inspector.artifact, "cpu", rows.values(), inspector.dims(phase))
        ran = {index: work for index, work in works.items() if calls.times_us[index] > 0}
        large = {i: work for i, work in ran.items() if work.size_bytes >= _LEAST_BYTES}
        bytes_per_us = max((work.size_bytes / calls.times_us[i] for i, work in large.items()), default=0.0)
        flops_per_us = max((work.flops / calls.times_us[i] for i, work in large.items()), default=0.0)
        for index, work in large.items():
            launch = rows[index].launch
            limit = max(work.size_bytes / bytes_per_us, work.flops / flops_per_us if flops_per_us else 0.0)
            op = without_layer(launch.op, rows[index].layer)
            yield _Timed(phase=phase, op=op, kernel=launch.kernel, time_us=calls.times_us[index], limit_us=limit)


def _of_gpu(inspector: Inspector) -> Iterator[_Timed]:
    for phase, limits in inspector.limits.items():
        for limit in limits.values():
            row = limit.row
            times = measured_times(inspector.artifact, row.kernel.chosen)
            if times:
                op = without_layer(row.launch.op, row.layer)
                kernel = row.launch.kernel
                yield _Timed(phase=phase, op=op, kernel=kernel, time_us=times[0].time_us, limit_us=limit.limit_us)
