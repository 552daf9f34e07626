"""Merges the launches that unpack weights for MLX's matmul: those of one layer become a single launch.

The CPU takes about 9 us for each launch (MLX's CUDA backend), longer than the GPU takes to unpack a small weight. Four
such launches per layer are a quarter of all launches in a small model's prefill, in which the GPU waits for the CPU.

1. Launches are merged if they belong to one layer, have the same condition and unroll, and unpack to the same type. So
   a merged launch runs only when MLX takes all of these projections.
2. They are merged in order, as long as the unpacked weights of a launch have at most `MOST_BYTES`.
3. The merged launch replaces the first of them, and keeps that launch's op and geometry site.

Unpacked weights are in memory from that launch to the matmul that reads them. A launch without a partner does not
change.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from mlxr.compiler.artifact.launch import ONE, Extent
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.metal.kernels.unpack import UnpackKernel

MOST_BYTES = 128 * 2**20
"""The most bytes of unpacked weights per launch; they are in memory at the same time.

A layer of a model with a billion parameters has 90 MB. The GPU takes longer to unpack larger weights than the CPU takes
for a launch (an H200 about 25 us for 100 MB), so merging would cost memory and save no time.
"""


def merge_unpacks(launches: Sequence[PendingLaunch], most_bytes: int = MOST_BYTES) -> list[PendingLaunch]:
    """The launches of a phase, with the launches that unpack the weights of a layer merged.

    Args:
        launches: the launches in order; each unpacks at most one weight.
        most_bytes: the most bytes that a merged launch unpacks; a single weight may have more.
    """
    groups: list[list[PendingLaunch]] = []
    last: dict[Hashable, list[PendingLaunch]] = {}
    for launch in launches:
        key = _kind(launch)
        group = last.get(key, []) if key else []
        if not group or sum(map(_unpacked_bytes, (*group, launch))) > most_bytes:
            group = []
            groups.append(group)
            last[key] = group
        group.append(launch)
    return [_merged(group) for group in groups]


def _kind(launch: PendingLaunch) -> Hashable:
    """A key that is equal for launches that may be merged; None if a launch may not be merged."""
    kernel, layer = launch.body, launch.layer
    if not isinstance(kernel, UnpackKernel) or layer is None:
        return None
    assert launch.needs_library, "only library calls read unpacked weights"
    return layer, launch.when, kernel.unroll, kernel.activation


def _unpacked_bytes(launch: PendingLaunch) -> int:
    kernel = launch.body
    assert isinstance(kernel, UnpackKernel), "only these are merged"
    return sum(layout.rows * layout.columns for layout in kernel.layouts) * kernel.activation.size_bytes


def _merged(group: Sequence[PendingLaunch]) -> PendingLaunch:
    """One launch that does the work of a group."""
    first, kernels = group[0], [launch.body for launch in group if isinstance(launch.body, UnpackKernel)]
    if len(kernels) < 2:
        return first
    layouts = tuple(layout for kernel in kernels for layout in kernel.layouts)
    kernel = replace(kernels[0], label="unpack", layouts=layouts)
    return replace(
        first,
        body=kernel,
        inputs=tuple(name for launch in group for name in launch.inputs),
        outputs=tuple(name for launch in group for name in launch.outputs),
        threadgroups=(Extent(times=kernel.threadgroups), ONE, ONE),
    )
