"""A batch's metadata as one array on the GPU.

A step uploads one array, or, where the same sequences decode on, none. It is copied to the GPU's memory: an array that
the CPU filled would be in managed memory, where the GPU takes a page fault of up to 300 microseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.hosts.cuda.device_array import sent

_ALIGNMENT = 4  # elements: kernels may load 16 bytes at once


@dataclass(frozen=True)
class Packed:
    """Arrays of 32-bit integers, one after the other.

    Attributes:
        numbers: [elements], int32; gaps are 0.
        places: where each array's elements are.
    """

    numbers: npt.NDArray[np.int32]
    places: dict[str, slice]

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "Packed":
        """Packs int32 and uint32 arrays of any shape, in order."""
        places, end = {}, 0
        for name, array in arrays.items():
            places[name] = slice(end, end + array.size)
            end += -(-array.size // _ALIGNMENT) * _ALIGNMENT
        numbers = np.zeros(end, dtype=np.int32)
        for name, array in arrays.items():
            numbers[places[name]] = array.reshape(-1).view(np.int32)
        return cls(numbers, places)

    def upload(self) -> mx.array:
        """The numbers in the GPU's own memory, on their way there."""
        return sent(self.numbers)

    def unpack(self, uploaded: mx.array) -> dict[str, mx.array]:
        """Each array's elements, flat, as views of what `upload` gave; kernels see no shapes."""
        return {name: uploaded[place] for name, place in self.places.items()}


class DecodeInputs:
    """What decode steps read besides their tokens, kept on the GPU from one step to the next.

    When the same sequences each take their next token in the block where they are, positions and slots grow by one and
    nothing else changes: each step makes the next one's. Everything is compared with the batch at each step, and what
    is not as predicted is uploaded anew.
    """

    MOVING = ("positions", "slots", "context_lens")
    """Grow by one from step to step."""

    def __init__(self) -> None:
        self._moving: _Held | None = None
        self._steady: _Held | None = None

    def bind(self, arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[tuple[Packed, mx.array], tuple[Packed, mx.array]]:
        """A step's arrays, those that move and those that do not, as they are packed and on the GPU."""
        moving = {name: array for name, array in arrays.items() if name in self.MOVING}
        steady = {name: array for name, array in arrays.items() if name not in self.MOVING}
        moves = self._moving is not None and self._moving.holds(moving)
        stays = self._steady is not None and self._steady.holds(steady)
        if not (moves or stays):  # one page fault for both
            first, second = Packed.of(moving), Packed.of(steady)
            both, size = Packed(np.concatenate([first.numbers, second.numbers]), {}).upload(), len(first.numbers)
            self._moving, self._steady = _Held(moving, first, both[:size]), _Held(steady, second, both[size:])
        elif not moves:
            self._moving = _Held.of(moving)
        elif not stays:
            self._steady = _Held.of(steady)
        assert self._moving and self._steady, "held or uploaded"
        return (self._moving.packed, self._moving.uploaded), (self._steady.packed, self._steady.uploaded)

    def advance(self, moving: mx.array) -> None:
        """Takes what the step made of the moving arrays for the next one: each element one more."""
        assert self._moving is not None, "a step was bound"
        self._moving = _Held(
            {name: array + 1 for name, array in self._moving.arrays.items()}, self._moving.packed, moving
        )

    def forget(self) -> None:
        """Uploads all of the next step's arrays."""
        self._moving = self._steady = None


class _Held(NamedTuple):
    """Arrays that are on the GPU, and where."""

    arrays: dict[str, npt.NDArray[Any]]
    packed: Packed
    uploaded: mx.array

    @classmethod
    def of(cls, arrays: dict[str, npt.NDArray[Any]]) -> "_Held":
        packed = Packed.of(arrays)
        return cls(arrays, packed, packed.upload())

    def holds(self, wanted: Mapping[str, npt.NDArray[Any]]) -> bool:
        return self.arrays.keys() == wanted.keys() and all(
            np.array_equal(array, wanted[name]) for name, array in self.arrays.items()
        )
