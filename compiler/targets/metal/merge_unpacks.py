"""Merges the launches that unpack weights for MLX's matmul: those of one layer become one, before the first.

The CPU takes about 9 us for each launch (MLX's CUDA backend), longer than the GPU takes to unpack a small weight. Four
for each layer are a quarter of the launches of a small model's prefill, in which the GPU waits for the CPU.

1. Launches are merged that are of one layer and of one kind: under the same conditions, with the same unroll, to the
   same type. So a merged one runs only when MLX takes all of these projections.
2. They are merged in order, as long as what they make is at most `MOST_BYTES`.
3. The merged launch stands where the first of them stood, and is of its op and of its geometry's site.

What is unpacked lives from there to the matmul that reads it. A launch that is alone stays as it is.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.schedule.draft import ONE, Draft
from mlxr.compiler.targets.metal.kernels.unpack_kernel import UnpackKernel

MOST_BYTES = 128 * 2**20
"""Of the unpacked weights of one launch, which are in memory at once.

A layer of a model of a billion parameters has 90 MB of them. Larger weights take the GPU longer than the CPU takes for
a launch (an H200 about 25 us for 100 MB), so that merging them would cost memory and save no time.
"""

_LAYER = re.compile(r"layers\.\d+\.")


def merge_unpacks(drafts: Sequence[Draft], most_bytes: int = MOST_BYTES) -> list[Draft]:
    """The drafts of one step, those that unpack a layer's weights merged.

    Args:
        drafts: in order; each that unpacks does so for one weight.
        most_bytes: that one launch unpacks, unless it is one weight that has more.
    """
    groups: list[list[Draft]] = []
    last: dict[Hashable, list[Draft]] = {}
    for draft in drafts:
        key = _kind(draft)
        group = last.get(key, []) if key else []
        if not group or sum(map(_unpacked_bytes, (*group, draft))) > most_bytes:
            group = []
            groups.append(group)
            last[key] = group
        group.append(draft)
    return [_merged(group) for group in groups]


def _kind(draft: Draft) -> Hashable:
    """What drafts have in common that may be merged; None of those that may not."""
    kernel, layer = draft.kernel, _LAYER.match(draft.op)
    if not isinstance(kernel, UnpackKernel) or layer is None:
        return None
    assert draft.feeds_mlx and draft.when is None, "only MLX ops take what is unpacked"
    return layer[0], draft.mlx, kernel.unroll, kernel.activation


def _unpacked_bytes(draft: Draft) -> int:
    assert isinstance(draft.kernel, UnpackKernel), "only these are merged"
    return sum(one.rows * one.columns for one in draft.kernel.layouts) * draft.kernel.activation.size_bytes


def _merged(group: Sequence[Draft]) -> Draft:
    """One draft that does what these do."""
    first, kernels = group[0], [draft.kernel for draft in group if isinstance(draft.kernel, UnpackKernel)]
    if len(kernels) < 2:
        return first
    layouts = tuple(layout for kernel in kernels for layout in kernel.layouts)
    kernel = replace(kernels[0], label="unpack", layouts=layouts)
    return replace(
        first,
        kernel=kernel,
        inputs=tuple(name for draft in group for name in draft.inputs),
        outputs=tuple(name for draft in group for name in draft.outputs),
        threadgroups=(Extent(times=kernel.threadgroups), ONE, ONE),
    )
