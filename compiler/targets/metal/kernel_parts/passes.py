"""Threadgroups that take several tiles of a weight's rows, while each lane keeps its columns of x."""

from dataclasses import replace

from mlxr.compiler.targets.metal.kernel_parts.matrix_kernel import MatrixKernel

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
