"""A batch's metadata as one array on the GPU.

A step uploads one array, or none if the same sequences continue to decode. It is copied to the GPU's own memory: an
array that the CPU has filled is in managed memory, where the GPU takes a page fault of up to 300 microseconds.
"""

from collections.abc import Callable, Mapping
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

    If the same sequences take their next tokens, and none comes to a new block, then positions, slots and context
    lengths grow by one and nothing else changes: each step computes the inputs of the next one. All that is not as
    predicted is uploaded.
    """

    MOVING = ("positions", "context_lens")
    """The arrays that grow by one from step to step, as do slots within a block."""

    def __init__(self) -> None:
        self._steady: dict[str, npt.NDArray[Any]] = {}
        self._stayed: dict[str, mx.array] | None = None  # the same on the GPU
        self._packed = Packed.of({})  # the same, and
        self._uploaded: mx.array | None = None  # on the GPU
        self._predicted: npt.NDArray[np.int32] | None = None  # what moves, after the last step
        self._moved: mx.array | Callable[[], mx.array] | None = None  # the same on the GPU

    def bind(
        self,
        moving: Mapping[str, npt.NDArray[np.int32]],
        steady: dict[str, npt.NDArray[Any]],
        steps: int,
        together: bool = False,
    ) -> "BoundInputs":
        """The inputs of some steps, on the GPU.

        Args:
            moving: what moves, [steps, numbers] each.
            steady: what does not.
            steps: how many.
            together: whether what moves is given for all steps at once, unless it is one more in each.
        """
        rows = np.concatenate([np.zeros((steps, 0), np.int32), *moving.values()], axis=1)
        is_new = np.ones(steps, np.bool_)
        is_new[1:] = (rows[1:] != rows[:-1] + 1).any(axis=1)
        if self._predicted is not None and self._predicted.shape == rows[0].shape:
            is_new[0] = (rows[0] != self._predicted).any()
        self._predicted = None  # until all steps are launched
        at_once = together and bool(is_new[1:].any())
        new = list(range(steps)) if at_once else np.flatnonzero(is_new).tolist()
        layout = Packed.of({name: array[0] for name, array in moving.items()})
        sent = [Packed.of({name: array[step] for name, array in moving.items()}).numbers for step in new]
        packed = None if self._stayed is not None and _are_same(self._steady, steady) else Packed.of(steady)
        if packed is not None:
            sent.append(packed.numbers)
        given: list[mx.array | None] = [None] * steps
        ahead: mx.array | None = None
        if sent:
            uploaded, size = Packed(np.concatenate(sent), {}).upload(), len(layout.numbers)  # one page fault for all
            for place, step in enumerate(new):
                given[step] = uploaded[size * place : size * (place + 1)]
            ahead = uploaded[: size * steps] if at_once else None
            if packed is not None:
                self._packed, self._uploaded = packed, uploaded[size * len(new) :]
                self._steady, self._stayed = steady, packed.unpack(self._uploaded)
        assert self._stayed is not None and self._uploaded is not None, "it is on the GPU, or just uploaded"
        num_steady = sum(array.size for array in steady.values())
        places = self._packed.places
        return BoundInputs(layout, num_steady, self._stayed, self._uploaded, places, given, ahead, rows[-1] + 1)

    def moved(self, inputs: "BoundInputs", step: int) -> mx.array:
        """What moves, in one of the steps."""
        given = inputs.given[step]
        if given is not None:
            return given
        assert self._moved is not None, "the step before computed it"
        return self._moved if isinstance(self._moved, mx.array) else self._moved()

    def advance(self, inputs: "BoundInputs", step: int, moved: mx.array | Callable[[], mx.array]) -> None:
        """Takes what the step after one needs, which this one has computed: each number is one more."""
        self._moved = moved
        if step == len(inputs.given) - 1:
            self._predicted = inputs.after

    def forget(self) -> None:
        """Forgets the arrays, so that the next step uploads all of its own."""
        self._stayed = self._predicted = self._moved = None


class BoundInputs(NamedTuple):
    """The inputs of some decode steps.

    Attributes:
        moving: where the numbers of each array are that moves.
        num_steady: how many numbers do not move.
        stayed: those of each array.
        steady: all of them, packed.
        steady_places: where those of each array are.
        given: of each step the numbers that move, where they are not those of the step before and one more.
        ahead: what moves in all steps, if it was to be given at once and is not one more in each.
        after: what moves, after the last step.
    """

    moving: Packed
    num_steady: int
    stayed: dict[str, mx.array]
    steady: mx.array
    steady_places: dict[str, slice]
    given: list[mx.array | None]
    ahead: mx.array | None
    after: npt.NDArray[np.int32]


def _are_same(known: Mapping[str, npt.NDArray[Any]], wanted: Mapping[str, npt.NDArray[Any]]) -> bool:
    return known.keys() == wanted.keys() and all(_are_equal(array, wanted[name]) for name, array in known.items())


def _are_equal(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    """`np.array_equal` of arrays of one type, in a fifth of its time: a step compares five small ones."""
    return first is second or (first.shape == second.shape and first.tobytes() == second.tobytes())
