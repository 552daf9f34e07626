"""The states of sequences, of models that keep some: which slot holds which, and what a step reads and writes.

A state is what a model's stores of scope `sequence` hold of a sequence after some of its tokens. Unlike K and V it
cannot be cut: it is what it is after exactly these tokens. So a step writes states into slots other than those that it
reads, and a sequence keeps each state that it may have to go back to:

* the one that its newest step read, and the one after its last token: a step that was launched ahead may be given up;
* those after tokens that may be undone, which a step is told (`undo`): to undo guesses is to choose a slot;
* those that become snapshots (`StateSlots`), once the step that wrote them has certainly run (`commit`).

Snapshots are taken where others may begin alike: at the last full block of a prompt before its last token, at its end,
where more of it was in the arena than states were, and every so many tokens; and at the end of a sequence that is
freed, whose state is there anyway. `Pager.find_prefix` goes back to the last snapshot.

There are two slots at least for each sequence (`SLOTS_PER_SEQUENCE`), so a step never lacks one. All others are for
undoing and snapshots, and what does not fit is not kept.

`check_integrity` states the invariants.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import ArenaError
from mlxr.runtime.cache.block_hashes import BlockHashes
from mlxr.runtime.cache.integrity import equal
from mlxr.runtime.cache.state_slots import Snapshot, StateSlots

SLOTS_PER_SEQUENCE = 2
NO_STATE = -1
"""Column 0 of a step's table: there are no tokens before the step, and the state is zeros; others: write nothing."""


@dataclass(slots=True)
class _States:
    """The states of one sequence."""

    length: int = 0
    start: int = 0
    """The tokens before its newest step."""
    slots: dict[int, int] = field(default_factory=dict)
    """The slot of the state after so many tokens."""
    kept: set[int] = field(default_factory=set)
    """Those of them that become snapshots."""
    points: list[int] = field(default_factory=list)
    """Where else to take a snapshot, in tokens; the last ones first."""

    @property
    def optional(self) -> list[int]:
        """The states that nothing needs but undoing and snapshots, by their tokens; the oldest first."""
        return sorted(self.slots.keys() - {self.start, self.length})


class SequenceStates:
    """State slots of all sequences of a pager, by its ids, and the snapshots.

    Attributes:
        slots: the slots.
        keeping: sequences with states that become snapshots; perhaps more.
    """

    def __init__(self, num_slots: int, max_sequences: int, block_size: int, every: int = 0) -> None:
        """All slots are free.

        Args:
            num_slots: slots of the store.
            max_sequences: most sequences at once.
            block_size: tokens of a block of the arena.
            every: tokens from one snapshot of a sequence to the next, besides other points; 0: no others.

        Raises:
            ArenaError: there are fewer slots than the sequences need.
        """
        if num_slots < SLOTS_PER_SEQUENCE * max_sequences:
            raise ArenaError(
                f"{num_slots} state slots are too few for {max_sequences} sequences, each of which needs "
                f"{SLOTS_PER_SEQUENCE}: compile the spec with a smaller cache.max_sequences"
            )
        self.slots = StateSlots(num_slots)
        self._size, self._every = block_size, every
        self._most_optional = num_slots - SLOTS_PER_SEQUENCE * max_sequences
        self._sequences: dict[int, _States] = {}
        self.keeping: set[int] = set()

    @property
    def room(self) -> int:
        """How many tokens the sequences of the next step may be able to undo, together."""
        return self._most_optional - self._num_optional()

    def slots_of(self, seq_id: int) -> dict[int, int]:
        """The slot of each state that a sequence has, by how many tokens it is after."""
        return dict(sorted(self._sequences[seq_id].slots.items()))

    def add(self, seq_id: int, length: int = 0, slot: int = NO_STATE) -> None:
        """Adds a sequence.

        Args:
            seq_id: its id.
            length: tokens that it begins with.
            slot: of the snapshot after these; NO_STATE: it has no state until one is restored.

        Raises:
            ArenaError: the slot holds no snapshot any more; nothing has changed.
        """
        states = _States(length, length)
        if length and slot != NO_STATE:
            if slot not in self.slots.snapshots:
                raise ArenaError("the snapshot of this prefix has been given up; find the prefix again")
            self.slots.share(slot)
            states.slots[length] = slot
        self._sequences[seq_id] = states

    def fork(self, seq_id: int, fork_id: int) -> None:
        """Gives a sequence that was just added the tokens of another and, until one of them grows, its state."""
        parent = self._sequences[seq_id]
        states = _States(parent.length, parent.length)
        if parent.length:
            states.slots[parent.length] = slot = parent.slots[parent.length]
            self.slots.share(slot)
        self._sequences[fork_id] = states

    def want(self, seq_id: int, prompt_length: int, known: int = 0) -> None:
        """Says where others may begin as this sequence does.

        Args:
            seq_id: a sequence.
            prompt_length: tokens of its prompt.
            known: tokens of it whose K and V were in the arena when it began.
        """
        states = self._sequences[seq_id]
        last_block = (prompt_length - 1) // self._size * self._size
        points = {last_block, prompt_length}
        if known - states.length >= self._size:
            points.add(known)
        states.points = sorted((point for point in points if point > states.length), reverse=True)

    def keep(self, seq_id: int) -> None:
        """Keeps the state after a sequence's tokens so far, if there is room, so that it can come back to it."""
        states = self._sequences[seq_id]
        if self.room > 0 and states.length:
            states.kept.add(states.length)
            self.keeping.add(seq_id)

    def cut(self, seq_id: int, num_tokens: int) -> int:
        """How many of a sequence's next tokens a step should compute, so that snapshots are near enough to its end."""
        states = self._sequences[seq_id]
        start, end = states.length, states.length + num_tokens
        first = min(self._points(states, start, end), default=end)
        return num_tokens if end - first <= self._size else first - start

    def step(self, seq_ids: Sequence[int], counts: Sequence[int], undo: Sequence[int]) -> npt.NDArray[np.int32]:
        """Grows sequences and gives what the step reads and writes.

        Args:
            seq_ids: the sequences, each once.
            counts: new tokens of each.
            undo: how many of the tokens before its new end may be taken back after the step, of each.

        Returns:
            `Batch.state_table`.
        """
        slots = self.slots
        moved = [(self._sequences[seq_id], most) for seq_id, most in zip(seq_ids, undo, strict=True)]
        for (states, most), count in zip(moved, counts, strict=True):
            start, end = states.length, states.length + count
            for length in [length for length in states.slots if length < min(start, end - most)]:
                if length not in states.kept:
                    self._drop(states, length)
            states.start, states.length = start, end
        self._make_room(sum(map(min, undo, (count - 1 for count in counts))))
        for states, _ in moved:
            states.slots[states.length] = slots.take()
        room = self.room
        for states, most in moved:
            for length in range(states.length - 1, max(states.start, states.length - most - 1), -1):
                if room > 0:
                    room -= 1
                    states.slots[length] = slots.take()
        for (states, _), seq_id in zip(moved, seq_ids, strict=True):
            room -= self._take_snapshots(states, room)
            if states.kept:
                self.keeping.add(seq_id)
        return _table([states for states, _ in moved])

    def step_one_each(self, seq_ids: Sequence[int]) -> npt.NDArray[np.int32]:
        """`step` of one token for each sequence, none of which may be undone; in less time where that is plain."""
        moved = [self._sequences[seq_id] for seq_id in seq_ids]
        every = self._every
        for states in moved:  # each statement here runs for each sequence of each step
            if states.kept or states.points or (every and not (states.length + 1) % every) or len(states.slots) > 2:
                return self.step(seq_ids, [1] * len(moved), [0] * len(moved))
        numbers: list[int] = []
        slots = self.slots
        for states in moved:
            held, start = states.slots, states.length
            for length in held:
                if length != start:
                    slots.release(held.pop(length))
                    break
            held[start + 1] = slot = slots.take()
            states.start, states.length = start, start + 1
            numbers += (held[start] if start else NO_STATE, slot)
        return np.array(numbers, np.int32).reshape(-1, 2)

    def nearest(self, seq_id: int, length: int) -> int:
        """See `Pager.nearest`."""
        return max((after for after in self._sequences[seq_id].slots if after <= length), default=0)

    def truncate(self, seq_id: int, length: int) -> None:
        """Forgets all tokens after the first `length`.

        Raises:
            ArenaError: the state after these was not kept; nothing has changed.
        """
        states = self._sequences[seq_id]
        if length and length not in states.slots:
            kept = ", ".join(map(str, sorted(states.slots))) or "none"
            raise ArenaError(f"sequence {seq_id} cannot go back to {length} tokens: it has the states after {kept}")
        for after in [after for after in states.slots if after > length]:
            self._drop(states, after)
        states.length = length
        states.start = min(states.start, length)

    def commit(self, seq_id: int, tokens: Sequence[int], hashes: BlockHashes, length: int) -> None:
        """Makes snapshots of what is kept, up to so many tokens: the steps that computed them have certainly run.

        Args:
            seq_id: a sequence.
            tokens: its tokens.
            hashes: of the same tokens.
            length: how many of them are certain.
        """
        states = self._sequences[seq_id]
        for after in sorted(after for after in states.kept if after <= length):
            states.kept.remove(after)
            self.slots.keep(states.slots[after], tokens, hashes, after)
            if after not in (states.start, states.length):
                self._drop(states, after)
        if not states.kept:
            self.keeping.discard(seq_id)

    def end(self, seq_id: int, tokens: Sequence[int], hashes: BlockHashes | None, length: int) -> None:
        """`commit` of a sequence that will be freed, whose last certain state becomes a snapshot, if it has it.

        Args:
            seq_id: the sequence.
            tokens: its tokens.
            hashes: of the same tokens; None: nothing is certain.
            length: how many of them are certain.
        """
        if hashes is not None:
            states = self._sequences[seq_id]
            if length in states.slots:
                states.kept.add(length)
            self.commit(seq_id, tokens, hashes, length)

    def restore(self, seq_id: int, length: int) -> int:
        """The slot for the state of a sequence that has none and begins with so many tokens; the caller writes it now.

        `commit` makes it a snapshot.
        """
        states = self._sequences[seq_id]
        assert not states.slots, "it has no state"
        states.slots[length] = slot = self.slots.take()
        states.start = states.length = length
        states.kept.add(length)
        return slot

    def remove(self, seq_id: int) -> None:
        """Forgets a sequence without tokens."""
        assert not self._sequences.pop(seq_id).slots, "it has no tokens"
        self.keeping.discard(seq_id)

    def check_integrity(self, lengths: dict[int, int]) -> None:
        """Checks every invariant.

        Args:
            lengths: tokens of each sequence, by id.

        Raises:
            ArenaError: one does not hold; the message is the failed equation.
        """
        slots = self.slots
        mine = {seq_id: states.length for seq_id, states in self._sequences.items()}
        equal("tokens of sequences with states", mine, "those of the pager", lengths)
        uses = Counter(slot for states in self._sequences.values() for slot in states.slots.values())
        equal("references of state slots", slots.references, "uses", [uses[i] for i in range(slots.num_slots)])
        idle = slots.snapshots.keys() - uses
        equal("idle state slots", set(slots.idle), "snapshots that nobody uses", idle)
        free = set(range(slots.num_slots)) - uses.keys() - idle
        equal("free state slots", sorted(slots.free), "slots that are neither used nor idle", sorted(free))
        found = {slot: Snapshot(d, rest) for d, of in slots._slot_of.items() for rest, slot in of.items()}
        equal("snapshots by tokens", found, "snapshots by slot", slots.snapshots)
        equal("empty entries of the index", [d for d, of in slots._slot_of.items() if not of], "none", [])
        for seq_id, states in self._sequences.items():
            who = f"states of sequence {seq_id}: "
            equal(who + "last one", bool(states.length), "there", states.length in states.slots)
            equal(who + "start of its newest step", states.start <= states.length, "within its tokens", True)
            equal(who + "known to keep some", bool(states.kept) <= (seq_id in self.keeping), "true", True)
            equal(who + "kept and not there", states.kept - states.slots.keys(), "none", set())
            equal(who + "beyond its tokens", [n for n in states.slots if n > states.length], "none", [])
        most = max(0, self._num_optional() - self._most_optional)
        equal("state slots that no sequence needs beyond those that are spare", most, "0", 0)

    def _num_optional(self) -> int:
        return sum(
            len(states.slots) - (states.length in states.slots) - (states.start != states.length and states.start > 0)
            for states in self._sequences.values()
        )

    def _make_room(self, num_undone: int) -> None:
        """Gives up kept states that no longer fit, since they are no longer what a step reads or wrote last.

        Args:
            num_undone: states that the step writes so that tokens may be undone; they come first.
        """
        excess = self._num_optional() + min(num_undone, self._most_optional) - self._most_optional
        if excess <= 0:
            return
        for states in self._sequences.values():
            for length in states.optional[:excess]:
                self._drop(states, length)
                excess -= 1

    def _points(self, states: _States, start: int, end: int) -> Iterable[int]:
        """Where snapshots are wanted after `start` tokens, up to `end`."""
        yield from (point for point in states.points if start < point <= end)
        if self._every:
            yield from range((start // self._every + 1) * self._every, end + 1, self._every)

    def _take_snapshots(self, states: _States, room: int) -> int:
        """Takes slots for the snapshots of a step, as far as there is room; returns how many."""
        taken = 0
        if self._every or states.points:
            for point in sorted(set(self._points(states, states.start, states.length))):
                if point in states.slots:
                    states.kept.add(point)
                elif taken < room and states.length - point <= self._size:
                    states.slots[point] = self.slots.take()
                    states.kept.add(point)
                    taken += 1
            while states.points and states.points[-1] <= states.length:
                states.points.pop()
        return taken

    def _drop(self, states: _States, length: int) -> None:
        self.slots.release(states.slots.pop(length))
        states.kept.discard(length)


def _table(moved: Sequence[_States]) -> npt.NDArray[np.int32]:
    rows = []
    width = 2
    for states in moved:
        row = [states.slots[states.start] if states.start else NO_STATE]
        first = min(length for length in states.slots if length > states.start)
        row += [states.slots.get(length, NO_STATE) for length in range(states.length, first - 1, -1)]
        width = max(width, len(row))
        rows.append(row)
    return np.array([row + [NO_STATE] * (width - len(row)) for row in rows], np.int32)
