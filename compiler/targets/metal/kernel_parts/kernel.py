"""The base of Metal kernels."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.schedule.kernel import Kernel

SIMD_WIDTH = 32
THREADGROUP_BYTES = 32768
BLOCK_BYTES = 200 << 10
"""Threadgroup memory of a threadgroup on NVIDIA cards for data centres, less what a step kernel needs itself."""
MMA_ROWS = 16
"""Rows of the first factor of a matrix instruction: of a weight, or of query heads."""
PART_ARRAYS = 10
"""Arrays in threadgroup memory that a kernel may declare if it is part of another one."""
PIECE = 16
"""Elements of a quantised row that a lane takes at once, in every format."""


@dataclass(frozen=True)
class MetalKernel(Kernel):
    """A kernel in Metal.

    Attributes:
        most_bytes: the most threadgroup memory that it may need.
    """

    most_bytes: ClassVar[int] = THREADGROUP_BYTES

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a threadgroup."""

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of threadgroup memory of a threadgroup."""
        return 0

    @property
    def cluster(self) -> int:
        """Neighbouring threadgroups that read each other's memory, where a launch can ask for that."""
        return 1

    @property
    def inlined(self) -> tuple["MetalKernel", ...]:
        """The kernels whose texts its template puts into its own; their threads are as many as its own."""
        return ()


def piece_of(format: WeightFormat) -> int:
    """Elements of a row that a lane takes at once: 16 bytes of a float format, as in templates/metal/formats."""
    return PIECE if format.is_quantised else 16 // format.dtype.size_bytes
