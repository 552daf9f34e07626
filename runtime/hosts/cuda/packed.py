"""A batch's metadata as one array on the GPU.

A step uploads one array, or none if the same sequences continue to decode. It is copied to the GPU's own memory: an
array that the CPU has filled is in managed memory, where the GPU takes a page fault of up to 300 microseconds.
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
    """Arrays of 32-bit integers, packed into one.

    Attributes:
        numbers: [elements], int32; gaps are 0.
        places: where the elements of each array are.
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
        """A lazy copy of the numbers in the GPU's own memory."""
        return sent(self.numbers)

    def unpack(self, uploaded: mx.array) -> dict[str, mx.array]:
        """The elements of each array, flat, as views of an uploaded copy; kernels see no shapes."""
        return {name: uploaded[place] for name, place in self.places.items()}


class DecodeInputs:
    """The inputs of decode steps other than their tokens, kept on the GPU from one step to the next.

    If the same sequences take their next tokens, and none needs a new block, then positions, slots and context lengths
    grow by one and nothing else changes: each step computes the inputs of the next one. Each step compares them with
    its batch, and arrays that are not as predicted are uploaded again.
    """

    MOVING = ("positions", "slots", "context_lens")
    """The arrays that grow by one from step to step; of slots, those of all groups."""

    def __init__(self) -> None:
        self._moving: _Uploaded | None = None
        self._steady: _Uploaded | None = None

    def bind(self, arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[tuple[Packed, mx.array], tuple[Packed, mx.array]]:
        """A step's arrays, packed and on the GPU: those that move, then those that do not."""
        moving = {name: array for name, array in arrays.items() if name.partition(".")[0] in self.MOVING}
        steady = {name: array for name, array in arrays.items() if name not in moving}
        moves = self._moving is not None and self._moving.matches(moving)
        stays = self._steady is not None and self._steady.matches(steady)
        if not (moves or stays):  # one upload, and one page fault, for both
            first, second = Packed.of(moving), Packed.of(steady)
            both, size = Packed(np.concatenate([first.numbers, second.numbers]), {}).upload(), len(first.numbers)
            self._moving, self._steady = _Uploaded(moving, first, both[:size]), _Uploaded(steady, second, both[size:])
        elif not moves:
            self._moving = _Uploaded.of(moving)
        elif not stays:
            self._steady = _Uploaded.of(steady)
        assert self._moving and self._steady, "on the GPU, or just uploaded"
        return (self._moving.packed, self._moving.uploaded), (self._steady.packed, self._steady.uploaded)

    def advance(self, moving: mx.array) -> None:
        """Takes the moving arrays of the next step, which this step has computed: each element is one more."""
        assert self._moving is not None, "a step was bound"
        self._moving = _Uploaded(
            {name: array + 1 for name, array in self._moving.arrays.items()}, self._moving.packed, moving
        )

    def forget(self) -> None:
        """Forgets the arrays, so that the next step uploads all of its own."""
        self._moving = self._steady = None


class _Uploaded(NamedTuple):
    """Arrays, and their copy on the GPU."""

    arrays: dict[str, npt.NDArray[Any]]
    packed: Packed
    uploaded: mx.array

    @classmethod
    def of(cls, arrays: dict[str, npt.NDArray[Any]]) -> "_Uploaded":
        packed = Packed.of(arrays)
        return cls(arrays, packed, packed.upload())

    def matches(self, wanted: Mapping[str, npt.NDArray[Any]]) -> bool:
        return self.arrays.keys() == wanted.keys() and all(
            _are_equal(array, wanted[name]) for name, array in self.arrays.items()
        )


def _are_equal(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    """`np.array_equal` of arrays of one type, in a fifth of its time: a step compares eight small ones."""
    return first is second or (first.shape == second.shape and first.tobytes() == second.tobytes())
