"""Which rows and columns of a tensor a rank has, by what its axes count."""

from dataclasses import dataclass

from mlxr.compiler.ir.division import Axes
from mlxr.compiler.spec.share import Range, Share


@dataclass(frozen=True)
class TensorSlice:
    """A part of a tensor: rows [first, last) of a matrix or elements of a vector, and columns; None: all."""

    rows: Range | None = None
    columns: Range | None = None


WHOLE = TensorSlice()


def slice_of(axes: Axes, share: Share) -> TensorSlice:
    """The part of a tensor with these axes that a rank has."""
    if not share.is_divided:
        return WHOLE
    return TensorSlice(*(None if axis is None else axis.elements_of(share) for axis in axes))
