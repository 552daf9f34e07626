"""The slots of a model's states: which sequences use them, and which hold snapshots. Only bookkeeping.

A snapshot is the state after some tokens, and is found by these. It is never written over. Who has the same tokens
begins with it. Snapshots that nobody uses are idle; they are evicted when no slot is free, those first that nobody has
used for longest.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from mlxr.runtime.cache.block_hashes import BlockHashes, Digest
from mlxr.runtime.cache.blocks import CACHED, FREE, SHARED, USED
from mlxr.runtime.cache.prefix_index import CachedBlock


class Snapshot(NamedTuple):
    """The tokens that lead to a state: full blocks, by their digest, and the tokens after these."""

    digest: Digest
    rest: tuple[int, ...]

    @classmethod
    def of(cls, tokens: Sequence[int], hashes: BlockHashes, length: int) -> "Snapshot":
        """That of the first `length` tokens.

        Args:
            tokens: a sequence's tokens.
            hashes: of the same tokens.
            length: how many of them.
        """
        num_blocks = len(hashes.of(tokens, length))
        return cls(hashes.parent(num_blocks), tuple(tokens[num_blocks * hashes.block_size : length]))


class StateSlots:
    """Slots by reference count. A slot without references is idle if it holds a snapshot, else free.

    Attributes:
        references: of each slot; one for each sequence that has it.
        free: a stack.
        idle: snapshots without references, in the order of eviction.
        snapshots: what the slots with snapshots hold.
        record_evictions: whether snapshots that are evicted are added to `evicted`, with their slots.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.record_evictions = False
        self.evicted: list[tuple[int, Snapshot]] = []
        self.references = [0] * num_slots
        self.free = list(range(num_slots - 1, -1, -1))
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.snapshots: dict[int, Snapshot] = {}
        self._slot_of: dict[Digest, dict[tuple[int, ...], int]] = {}

    @property
    def num_free(self) -> int:
        """Slots that `take` can still return."""
        return len(self.free) + len(self.idle)

    def slot_states(self) -> str:
        """One letter for each slot, as `blocks.block_states` has them: those that are cached hold idle snapshots."""
        states = [USED if count == 1 else SHARED if count else FREE for count in self.references]
        for slot in self.idle:
            states[slot] = CACHED
        return "".join(states)

    def take(self) -> int:
        """Gives a free slot, or that of the snapshot that is evicted next, one reference."""
        assert self.num_free, "no state slot is free: there are too many states of sequences that need none"
        if self.free:
            slot = self.free.pop()
        else:
            slot, _ = self.idle.popitem(last=False)
            snapshot = self.snapshots.pop(slot)
            if self.record_evictions:
                self.evicted.append((slot, snapshot))
            siblings = self._slot_of[snapshot.digest]
            del siblings[snapshot.rest]
            if not siblings:
                del self._slot_of[snapshot.digest]
        self.references[slot] = 1
        return slot

    def share(self, slot: int) -> None:
        """Adds a reference to a slot that is in use or holds a snapshot."""
        assert self.references[slot] or slot in self.idle, f"state slot {slot} is not in use"
        self.idle.pop(slot, None)
        self.references[slot] += 1

    def release(self, slot: int) -> None:
        """Removes a reference."""
        assert self.references[slot] > 0, f"state slot {slot} is released more often than it was taken"
        self.references[slot] -= 1
        if not self.references[slot]:
            if slot in self.snapshots:
                self.idle[slot] = None
            else:
                self.free.append(slot)

    def keep(self, slot: int, tokens: Sequence[int], hashes: BlockHashes, length: int) -> None:
        """Makes a slot in use the snapshot of the first `length` tokens, if there is none of these.

        Args:
            slot: the slot.
            tokens: a sequence's tokens.
            hashes: of the same tokens.
            length: how many of them.
        """
        if slot in self.snapshots:
            return
        snapshot = Snapshot.of(tokens, hashes, length)
        if self._slot_of.setdefault(snapshot.digest, {}).setdefault(snapshot.rest, slot) == slot:
            self.snapshots[slot] = snapshot

    def ending_in(self, block: CachedBlock) -> list[tuple[int, Snapshot]]:
        """The snapshots that end within a block or with it, and their slots."""
        within, after = self._slot_of.get(block.parent, {}), self._slot_of.get(block.digest, {})
        found = [
            (slot, Snapshot(block.parent, rest))
            for rest, slot in within.items()
            if rest and rest == block.tokens[: len(rest)]
        ]
        return found + [(slot, Snapshot(block.digest, ())) for rest, slot in after.items() if not rest]

    def find(self, tokens: Sequence[int], hashes: BlockHashes, most: int) -> tuple[int, int]:
        """The longest start of some tokens of which there is a snapshot.

        Args:
            tokens: the tokens.
            hashes: of the same tokens.
            most: how long it may be.

        Returns:
            Its tokens and its slot; 0 and -1 if there is none.
        """
        size = hashes.block_size
        for num_blocks in range(len(hashes.of(tokens, most)), -1, -1):
            siblings = self._slot_of.get(hashes.parent(num_blocks))
            if siblings is not None:
                start = num_blocks * size
                following = tuple(tokens[start : min(start + size, most)])
                found = [rest for rest in siblings if rest == following[: len(rest)] and start + len(rest)]
                if found:
                    longest = max(found, key=len)
                    return start + len(longest), siblings[longest]
        return 0, -1
