"""A batch's metadata as one array on the GPU.

A step uploads one array, or none if the same sequences continue to decode. It is copied to the GPU's own memory: an
array that the CPU has filled is in managed memory, where the GPU takes a page fault of up to 300 microseconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.equal_growth import counts
from mlxr.runtime.hosts.cuda.device_array import sent
from mlxr.runtime.hosts.likeliest import Grown

TABLES = "block_tables"
Rows = Sequence[npt.NDArray[np.int32]] | npt.NDArray[np.int32]
"""Some arrays, or the rows of one."""
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
        places, end = places_of(tuple([(name, array.size) for name, array in arrays.items()]))
        numbers = np.zeros(end, dtype=np.int32)
        for place, array in zip(places.values(), arrays.values(), strict=True):
            flat = array if array.ndim == 1 else array.reshape(-1)
            numbers[place] = flat.view(np.int32) if flat.dtype.kind == "f" else flat
        return cls(numbers, places)

    def is_like(self, numbers: npt.NDArray[np.int32]) -> bool:
        """Whether other numbers are the same but for the gaps."""
        return numbers.shape == self.numbers.shape and all(
            (numbers[place] == self.numbers[place]).all() for place in self.places.values()
        )

    def upload(self) -> mx.array:
        """A lazy copy of the numbers in the GPU's own memory."""
        return sent(self.numbers)

    def unpack(self, uploaded: mx.array) -> dict[str, mx.array]:
        """The elements of each array, flat, as views of an uploaded copy; kernels see no shapes."""
        return {name: uploaded[place] for name, place in self.places.items()}


class SentTogether:
    """Numbers that go to the GPU in one copy, once somebody asks for any of them there.

    Attributes:
        parts: they, where the CPU has them.
    """

    def __init__(self, parts: Rows) -> None:
        """Takes the parts, which nobody changes any more."""
        self.parts = parts

    def part(self, index: int, count: int = 1) -> mx.array:
        """Some of the parts, one after the other, on the GPU."""
        begins = [0, *accumulate([part.size for part in self.parts])]
        return self._on_gpu[begins[index] : begins[index + count]]

    @cached_property
    def _on_gpu(self) -> mx.array:
        return Packed(np.concatenate(self.parts), {}).upload()  # one page fault for all


class Steady:
    """What does not move, for as long as it stays the same.

    Attributes:
        packed: it.
    """

    def __init__(self, packed: Packed, together: SentTogether, index: int) -> None:
        """Takes what a part of what is sent together has."""
        self.packed, self._together, self._index = packed, together, index

    @cached_property
    def on_gpu(self) -> mx.array:
        """All of it, packed."""
        return self._together.part(self._index)

    @cached_property
    def arrays(self) -> dict[str, mx.array]:
        """The same, each array by its name."""
        return self.packed.unpack(self.on_gpu)


class DecodeInputs:
    """The inputs of decode steps other than their tokens, kept on the GPU from one step to the next.

    If the same sequences take their next tokens, and none comes to a new block, then positions, slots and context
    lengths grow by one and nothing else changes: each step computes the inputs of the next one. All that is not as
    predicted is uploaded.
    """

    MOVING = ("positions", "context_lens")
    """The arrays that grow by one from step to step, as do slots within a block."""

    def __init__(self) -> None:
        self._known: dict[str, npt.NDArray[Any]] = {}  # what does not move
        self._steady: Steady | None = None  # the same
        self._predicted: npt.NDArray[np.int32] | None = None  # what moves, after the last step
        self._tables: dict[str, tuple[tuple[int, ...], bytes]] = {}  # as they were given when steps went on last
        self._tables_of: Packed | None = None  # which has these
        self._moved: mx.array | Callable[[], mx.array] | None = None  # the same on the GPU

    def bind(
        self,
        moving: Mapping[str, npt.NDArray[np.int32]],
        steady: dict[str, npt.NDArray[Any]],
        steps: int,
        together: bool = False,
    ) -> "BoundInputs":
        """The inputs of some steps, for the GPU.

        Args:
            moving: what moves, [steps, numbers] each.
            steady: what does not.
            steps: how many.
            together: whether what moves is given for all steps at once, unless it is one more in each.
        """
        rows = np.concatenate([np.zeros((steps, 0), np.int32), *moving.values()], axis=1)
        jumps = steps > 1 and bool((rows[1:] != rows[:-1] + 1).any())
        layout = Packed.of({name: array[0] for name, array in moving.items()})
        new = [] if self._predicted is not None and layout.is_like(self._predicted) else [0]
        if jumps and together:
            new = list(range(steps))
        elif jumps:
            new += (1 + np.flatnonzero((rows[1:] != rows[:-1] + 1).any(axis=1))).tolist()
        self._predicted = None  # until all steps are launched
        parts = [Packed.of({name: array[step] for name, array in moving.items()}).numbers for step in new]
        packed = None
        if self._steady is None or not _are_same(self._known, steady):
            packed = Packed.of(steady)
            parts.append(packed.numbers)
        sent = SentTogether(parts)
        if packed is not None:
            self._known, self._steady = steady, Steady(packed, sent, len(new))
        assert self._steady is not None, "it was known, or has just been packed"
        num_steady = sum(array.size for array in steady.values())
        after = Packed.of({name: array[-1] for name, array in moving.items()}).numbers + 1
        return BoundInputs(layout, num_steady, self._steady, steps, new, sent, jumps and together, after)

    @property
    def is_predicted(self) -> bool:
        """Whether steps were bound and launched, so that others can go on after them."""
        return self._predicted is not None

    def go_on(self, inputs: "BoundInputs", steps: int, grown: Grown) -> "BoundInputs":
        """The inputs of steps of the same sequences that follow the last ones: as `bind`, `together`, would give them.

        Args:
            inputs: of those.
            steps: how many.
            grown: where their tokens are; the tables have room for the columns in use.
        """
        steady, first, places = self._steady, self._predicted, inputs.moving.places
        assert steady is not None and first is not None, "the steps before have been launched"
        self._predicted, rows, jumps = None, first + counts(steps), False  # until all steps are launched
        for name, slots in grown.slots.items():
            if (place := places.get(name)) is not None:
                own, given = rows[:, place], np.array(slots, np.int32).reshape(steps, -1)
                if own.tobytes() != given.tobytes():
                    own[...], jumps = given, True
        if (packed := self._with_tables(steady.packed, grown.tables)) is not None:
            self._steady = None  # until it is known what it has
            self._known = self._known | {name: packed.numbers[packed.places[name]] for name in self._tables}
            steady = self._steady = Steady(packed, SentTogether([packed.numbers]), 0)
        new, sent = ([*range(steps)], SentTogether(rows)) if jumps else ([], SentTogether([]))
        moving, after = Packed(rows[0], places), rows[-1] + np.int32(1)
        return BoundInputs(moving, inputs.num_steady, steady, steps, new, sent, jumps and steps > 1, after)

    def _with_tables(self, packed: Packed, tables: Mapping[str, npt.NDArray[np.int32]]) -> Packed | None:
        """The same with other tables, [seqs, columns in use], among the columns that there are; None: no others.

        They differ when a sequence comes to a block, and also when a full one is replaced by an equal one.
        """
        copied, changed = None, False
        if self._tables_of is not packed:
            self._tables.clear()
        self._tables_of = None  # until all have been copied
        for name, table in tables.items():
            if (place := packed.places.get(name)) is None:
                continue
            known = self._tables.get(name)
            self._tables[name] = now = (table.shape, table.tobytes())
            if now == known:
                continue
            copied = packed.numbers.copy() if copied is None else copied
            changed = changed or known is not None
            shape = len(table), int(copied[place.start])  # how many columns there are, then all rows
            copied[place][1:].reshape(shape)[:, : table.shape[1]] = table
        changed = changed or (copied is not None and not _are_equal(copied, packed.numbers))
        self._tables_of = Packed(copied, packed.places) if copied is not None and changed else packed
        return self._tables_of if changed else None

    def moved(self, inputs: "BoundInputs", step: int) -> mx.array:
        """What moves, in one of the steps."""
        given = inputs.given(step)
        if given is not None:
            return given
        assert self._moved is not None, "the step before computed it"
        return self._moved if isinstance(self._moved, mx.array) else self._moved()

    def advance(self, inputs: "BoundInputs", step: int, moved: mx.array | Callable[[], mx.array]) -> None:
        """Takes what the step after one needs, which this one has computed: each number is one more."""
        self._moved = moved
        if step == inputs.steps - 1:
            self._predicted = inputs.after

    def forget(self) -> None:
        """Forgets the arrays, so that the next step uploads all of its own."""
        self._steady = self._predicted = self._moved = None


class BoundInputs(NamedTuple):
    """The inputs of some decode steps.

    Attributes:
        moving: what moves in the first step, and where the numbers of each array are.
        num_steady: how many numbers do not move.
        steady: they.
        steps: how many steps.
        new: those in which the numbers that move are not those of the step before and one more.
        sent: what moves in each of these, one after the other.
        at_once: whether what moves is to be given for all steps at once: it is not one more in each.
        after: what moves, after the last step.
    """

    moving: Packed
    num_steady: int
    steady: Steady
    steps: int
    new: list[int]
    sent: SentTogether
    at_once: bool
    after: npt.NDArray[np.int32]

    def given(self, step: int) -> mx.array | None:
        """What moves in a step, on the GPU, if it is new."""
        return self.sent.part(self.new.index(step)) if step in self.new else None

    @property
    def ahead(self) -> mx.array | None:
        """What moves in all steps, on the GPU, if it is to be given at once."""
        return self.sent.part(0, self.steps) if self.at_once else None

    @property
    def rows_at_once(self) -> Rows:
        """The same of each step, where the CPU has it; empty: it is not to be given at once."""
        return self.sent.parts[: self.steps] if self.at_once else ()


@lru_cache(1024)
def places_of(sizes: tuple[tuple[str, int], ...]) -> tuple[dict[str, slice], int]:
    """The places of packed arrays by their names and sizes, and where they end."""
    places, end = dict[str, slice](), 0
    for name, size in sizes:
        places[name] = slice(end, end + size)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places, end


def _are_same(known: Mapping[str, npt.NDArray[Any]], wanted: Mapping[str, npt.NDArray[Any]]) -> bool:
    return known.keys() == wanted.keys() and all(_are_equal(array, wanted[name]) for name, array in known.items())


def _are_equal(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    """`np.array_equal` of arrays of one type, in a fifth of its time: a step compares five small ones."""
    return first is second or (first.shape == second.shape and first.tobytes() == second.tobytes())
