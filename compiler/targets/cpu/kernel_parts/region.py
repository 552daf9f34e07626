"""Arrays in the scratch memory of a thread."""

import math
from dataclasses import dataclass

from mlxr.compiler.schedule.kernel import round_up

_CACHE_LINE = 64

Arrays = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Arrays without places: name, element type in C, and shape of each."""


@dataclass(frozen=True)
class Region:
    """An array in scratch, `offset` bytes from its start. `type` is the type of its elements in C."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * (1 if self.type == "uint8_t" else 4)


def place_regions(arrays: Arrays) -> tuple[Region, ...]:
    """Places arrays one after the other, each at the start of a cache line."""
    regions: list[Region] = []
    offset = 0
    for name, element_type, shape in arrays:
        regions.append(Region(name, element_type, shape, offset))
        offset = round_up(offset + regions[-1].size_bytes, _CACHE_LINE)
    return tuple(regions)


def regions_bytes(regions: tuple[Region, ...]) -> int:
    """Bytes from the start of the first region to the end of the last one."""
    return regions[-1].offset + regions[-1].size_bytes
