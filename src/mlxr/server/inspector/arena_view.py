"""The blocks of the arena and the slots of states, and whose they are, at this moment. It says nothing of texts."""

from itertools import pairwise
from typing import Literal

from mlxr.compiler.spec.record import Record
from mlxr.runtime.cache.blocks import CACHED, FREE, SHARED, USED
from mlxr.runtime.engine.arena_state import ArenaState, GroupState, HeldBlocks, SequenceState, SlotsState
from mlxr.runtime.engine.engine_thread import EngineThread


class HeldView(Record):
    """The blocks of a group that a sequence holds.

    Attributes:
        first: the number of the first one among the sequence's blocks; above 0 once blocks have left the window.
        blocks: in the order of tokens, as runs (first, last) of neighbours.
    """

    first: int
    blocks: tuple[tuple[int, int], ...]


class HeldSlot(Record):
    """A state that a sequence has.

    Attributes:
        slot: where it is.
        tokens: how many of the sequence's tokens it is after.
    """

    slot: int
    tokens: int


class SequenceView(Record):
    """A sequence that uses blocks.

    Attributes:
        id: its number in the arena; never used again.
        request: the number of its request, as they came; null if it belongs to none.
        prompt_tokens: tokens of the prompt; null without a request.
        tokens: tokens that have a place in its blocks.
        groups: its blocks of each group.
        slots: its states; none if the model keeps none.
    """

    id: int
    request: int | None
    prompt_tokens: int | None
    tokens: int
    groups: tuple[HeldView, ...]
    slots: tuple[HeldSlot, ...]


class GroupView(Record):
    """Layers that share a block table.

    Attributes:
        layers: their numbers; none in a first group that only names prefixes, where every layer has a window.
        window: tokens that each of them sees, the newest included; null: all. Blocks that left it are given back.
        block_bytes: bytes of a block in all of them.
        num_blocks: blocks of the group.
        states: a letter for each block: `f` free; `c` only the prefix cache has it, and it can be found; `u` a sequence
            uses it; `s` several sequences share it.
        free, cached, used, shared: how many of each.
    """

    layers: tuple[int, ...]
    window: int | None
    block_bytes: int
    num_blocks: int
    states: str
    free: int
    cached: int
    used: int
    shared: int


class SlotsView(Record):
    """The slots of the states that a model keeps of its sequences.

    Attributes:
        slot_bytes: bytes of a slot in all layers.
        num_slots: how many there are.
        states: a letter for each, as of blocks; `c` is a snapshot that no sequence uses.
        free, cached, used, shared: how many of each.
        snapshots: the slots of all snapshots; sequences may use these, too.
    """

    slot_bytes: int
    num_slots: int
    states: str
    free: int
    cached: int
    used: int
    shared: int
    snapshots: tuple[int, ...]


class ArenaView(Record):
    """The arena.

    Attributes:
        mode: `paged` or `contiguous`.
        block_size: tokens of a block.
        groups: of layers; the first keeps all tokens.
        slots: of states; null: the model keeps none.
        sequences: those that use blocks.
    """

    mode: Literal["paged", "contiguous"]
    block_size: int
    groups: tuple[GroupView, ...]
    slots: SlotsView | None
    sequences: tuple[SequenceView, ...]


def arena_view(engine: EngineThread) -> ArenaView:
    """The arena between two steps; waits for the step that runs. Not for an event loop's own thread.

    Raises:
        EngineError: the engine was closed, or has failed.
    """
    return view_of(engine.arena())


def view_of(state: ArenaState) -> ArenaView:
    """The record of a state."""
    return ArenaView(
        mode="contiguous" if state.mode == "contiguous" else "paged",
        block_size=state.block_size,
        groups=tuple(map(_group, state.groups)),
        slots=None if state.slots is None else _slots(state.slots),
        sequences=tuple(map(_sequence, state.sequences)),
    )


def _group(state: GroupState) -> GroupView:
    return GroupView(
        layers=state.group.layers,
        window=state.group.window,
        block_bytes=state.block_bytes,
        num_blocks=len(state.states),
        states=state.states,
        **_counts(state.states),
    )


def _slots(state: SlotsState) -> SlotsView:
    return SlotsView(
        slot_bytes=state.slot_bytes,
        num_slots=len(state.states),
        states=state.states,
        snapshots=state.snapshots,
        **_counts(state.states),
    )


def _counts(states: str) -> dict[str, int]:
    letters = {"free": FREE, "cached": CACHED, "used": USED, "shared": SHARED}
    return {name: states.count(letter) for name, letter in letters.items()}


def _sequence(sequence: SequenceState) -> SequenceView:
    return SequenceView(
        id=sequence.seq_id,
        request=sequence.request,
        prompt_tokens=sequence.prompt_tokens,
        tokens=sequence.tokens,
        groups=tuple(map(_held, sequence.held)),
        slots=tuple(HeldSlot(slot=slot, tokens=tokens) for tokens, slot in sequence.slots.items()),
    )


def _held(held: HeldBlocks) -> HeldView:
    return HeldView(first=held.first, blocks=_runs(held.blocks))


def _runs(blocks: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Runs of neighbours, in order: (3, 5) for 3, 4, 5."""
    if not blocks:
        return ()
    ends = [i for i, (left, right) in enumerate(pairwise(blocks)) if right != left + 1]
    starts = [0, *(end + 1 for end in ends)]
    return tuple((blocks[first], blocks[last]) for first, last in zip(starts, [*ends, len(blocks) - 1], strict=True))
