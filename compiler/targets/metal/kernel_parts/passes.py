"""Threadgroups that take several tiles of a weight's rows, while each lane keeps its columns of x."""

from dataclasses import replace
from typing import TypeVar

from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import ExpertKernel
from mlxr.compiler.targets.metal.kernel_parts.matrix_kernel import MatrixKernel

ExpertKernelT = TypeVar("ExpertKernelT", bound=ExpertKernel)
_MOST_COLUMNS = 32
"""The most columns of x that a lane keeps in registers."""


def keeps_columns(kernel: MatrixKernel, slots: int = 1) -> bool:
    """Whether the columns of x fit the lanes' registers, and both halves of a gate have the same columns.

    Args:
        kernel: the kernel.
        slots: rows of x that a threadgroup multiplies.
    """
    return kernel.lane_steps(slots) * kernel.piece <= _MOST_COLUMNS and all(
        len(span.groups) == 1 for span in kernel.spans
    )


def passes_of(tiles: int, threadgroups: int) -> int:
    """The tiles that each of so many threadgroups takes."""
    return -(-tiles // threadgroups)


def bytes_of_sums(kernel: MatrixKernel) -> int:
    """Bytes of threadgroup memory for the sums of all tiles."""
    return 4 * kernel.simdgroups * (kernel.passes * kernel.rows + kernel.reduces_scale)


def tiles_of(kernel: MatrixKernel) -> int:
    """Tiles of rows."""
    return replace(kernel, passes=0).threadgroups


def experts_in_passes(kernel: ExpertKernelT, threadgroups: int, slots: int = 1) -> ExpertKernelT:
    """The kernel with about so many threadgroups, if it and a shared expert can have few; 0: as it is.

    Args:
        kernel: the kernel.
        threadgroups: the most that the geometry asks for.
        slots: rows of x that a threadgroup multiplies by the experts.
    """
    shared = kernel.shared
    parts: list[tuple[MatrixKernel, int]] = [(kernel, slots), *([(shared, 1)] if shared else [])]
    if not threadgroups or not all(keeps_columns(part, rows) and len(part.spans) == 1 for part, rows in parts):
        return kernel
    passes = passes_of(kernel.threadgroups, threadgroups)
    return replace(kernel, passes=passes, shared=replace(shared, passes=passes) if shared else None)
