"""What a rank has of a value where a model is divided over ranks, and what the axes of weights count.

The builder says of each weight which of its axes ranks divide, and along what. From there the kinds' rules
(`OpKind.divide`) say what a rank has of every value, and so which rows and columns of each weight it needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mlxr.compiler.formats.stores import Countable
from mlxr.compiler.ir.checks import require
from mlxr.compiler.spec.divide_counts import Range
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class Axis:
    """An axis of a tensor that ranks divide.

    Attributes:
        of: what it counts.
        count: how many of them the whole model has.
        size: neighbouring elements of each, in each tile.
        tiles: equal parts of the axis, each of which has elements of all, in their order.
    """

    of: Countable
    count: int
    size: int = 1
    tiles: int = 1

    def range_of(self, share: Share) -> Range:
        """Which of them a rank has: [first, last)."""
        return share.range_of(self.of, self.count)

    def count_of(self, share: Share) -> int:
        """How many of them a rank has."""
        first, last = self.range_of(share)
        return last - first

    def elements_of(self, share: Share) -> Range:
        """The same in elements of a tile."""
        first, last = self.range_of(share)
        return first * self.size, last * self.size


Axes = tuple[Axis | None, ...]
"""For each axis of a tensor what ranks divide along it; None: nothing. The last one may be absent, if it is None."""


@dataclass(frozen=True)
class Holding:
    """What a rank has of a value: the whole, as all ranks of the stage; a part along an axis; or an addend.

    Attributes:
        axes: along which axes it has a part.
        is_partial: whether the value is the sum of what the ranks have.
    """

    axes: Axes = ()
    is_partial: bool = False

    @property
    def rows(self) -> Axis | None:
        """What its rows, or a vector's elements, are a part of; None: the rank has all."""
        return self.axes[0] if self.axes else None

    @property
    def columns(self) -> Axis | None:
        """The same of its columns."""
        return self.axes[1] if len(self.axes) > 1 else None

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the stage have the same."""
        return not self.is_partial and not any(self.axes)

    def __str__(self) -> str:
        parts = [f"some {axis.of} of {axis.count}" for axis in self.axes if axis is not None]
        return "a partial sum" if self.is_partial else " and ".join(parts) or "the whole"


Holdings = Mapping[str, Holding]
"""What a rank has of an op's inputs, by port."""
WHOLE, PARTIAL = Holding(), Holding(is_partial=True)


def split(columns: Axis | None) -> Holding:
    """Rows of which the rank has some columns; None: all."""
    return WHOLE if columns is None else Holding((None, columns))


def require_whole(has: Holdings, *ports: str) -> None:
    """Checks that the rank has the whole of what is bound to these ports."""
    for port in ports:
        if port in has:
            require(has[port].is_whole, f"a rank has {has[port]} at {port}; expected the whole")


def alike(has: Holdings, *ports: str) -> Holding:
    """What the rank has at all of these ports that are bound; raises RuleError where they differ."""
    first, *others = [port for port in ports if port in has]
    for port in others:
        require(has[port] == has[first], f"a rank has {has[first]} at {first}, and {has[port]} at {port}")
    return has[first]
