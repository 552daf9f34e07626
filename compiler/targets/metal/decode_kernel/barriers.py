"""The barriers of a step kernel: where its blocks wait for each other.

A launch waits if and only if it conflicts with a launch since the last wait: it touches bytes that the other wrote, or
writes bytes that the other read. A wait costs about a microsecond; a missing wait is a race.
"""

from collections.abc import Iterable
from dataclasses import replace

from mlxr.compiler.targets.metal.decode_kernel.step_program import StepLaunch, StepProgram


def with_barriers(program: StepProgram, masks: Iterable[int]) -> StepProgram:
    """The program with exactly the waits that it needs when it runs with any of these masks."""
    placed = {id(launch): replace(launch, waits=False) for launch in program.launches}
    for mask in sorted(masks):
        since: list[StepLaunch] = []
        for launch in program.running(mask):
            if not placed[id(launch)].waits and any(launch.conflicts(earlier) for earlier in since):
                placed[id(launch)] = replace(launch, waits=True)
            since = [launch] if placed[id(launch)].waits else [*since, launch]
    return replace(program, launches=tuple(placed.values()))
