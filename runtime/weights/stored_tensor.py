"""Where a tensor is in a weight file: the description that the readers of headers return and all else uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mlxr.runtime.weights.element_types import ElementType


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a weight file, not yet read."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, in both kinds of file."""
    element_type: ElementType
    file: Path
    offset: int
    """Where its bytes begin in `file`."""
    scales: "StoredTensor | None" = None
    """Factors of its numbers, one for each tile of rows and columns: see scaled_tensors.py; None for none.

    They may have scales, too.
    """

    @property
    def stored(self) -> "tuple[StoredTensor, ...]":
        """All that the file has of it: itself, and its scales."""
        return (self, *(self.scales.stored if self.scales is not None else ()))

    @property
    def type(self) -> str:
        """The element type's name, e.g. `BF16` or `Q4_K`."""
        return self.element_type.name

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return self.element_type.size_bytes(self.num_elements)


def is_possible(shape: Sequence[int]) -> bool:
    """Whether an array of this shape could exist: NumPy must be able to multiply all dimensions that are not 0."""
    return prod(max(size, 1) for size in shape) < 2**59


def quoted(text: str, limit: int = 100) -> str:
    """A name from a file, made safe and short enough for a message."""
    return ascii(text) if len(text) <= limit else f"{text[:limit]!a}... ({len(text)} characters)"
