"""Rows of heads, each of which is multiplied by a matrix of its own."""

from dataclasses import dataclass

from mlxr.compiler.targets.metal.kernel_parts.rope_kernel import WhollyRotated


@dataclass(frozen=True)
class HeadRows(WhollyRotated):
    """The rows of x by head: columns of a head are multiplied by a matrix of its own, and others behind them rotated.

    Attributes:
        num_heads: heads of x, and of the weight, which has the rows of all, one head after the other.
        head_columns: columns from one head of x to the next.
        activation, frequencies, rope_layout, rope_scale: see `WhollyRotated`; without frequencies nothing is rotated.
        first: the column of x with which the first head begins.
    """

    num_heads: int
    head_columns: int
    first: int = 0
