"""The blocks of the KV arena, and whose they are, at this moment. It says nothing of texts."""

from itertools import pairwise
from typing import Literal

from mlxr.compiler.spec.record import Record
from mlxr.runtime.cache.blocks import CACHED, FREE, SHARED, USED
from mlxr.runtime.engine.arena_state import ArenaState, SequenceState
from mlxr.runtime.engine.engine_thread import EngineThread


class SequenceView(Record):
    """A sequence that uses blocks.

    Attributes:
        id: its number in the arena; never used again.
        request: the number of its request, as they came; null if it belongs to none.
        prompt_tokens: tokens of the prompt; null without a request.
        tokens: tokens that have a place in its blocks.
        blocks: its blocks in the order of tokens, as runs (first, last) of neighbours.
    """

    id: int
    request: int | None
    prompt_tokens: int | None
    tokens: int
    blocks: tuple[tuple[int, int], ...]


class ArenaView(Record):
    """The arena.

    Attributes:
        mode: `paged` or `contiguous`.
        block_size, block_bytes: tokens of a block; bytes of its K and V in all layers.
        num_blocks: its blocks.
        states: a letter for each block: `f` free; `c` only the prefix cache has it, and it can be found; `u` a sequence
            uses it; `s` several sequences share it.
        free, cached, used, shared: how many of each.
    """

    mode: Literal["paged", "contiguous"]
    block_size: int
    block_bytes: int
    num_blocks: int
    states: str
    free: int
    cached: int
    used: int
    shared: int
    sequences: tuple[SequenceView, ...]


def arena_view(engine: EngineThread) -> ArenaView:
    """The arena between two steps; waits for the step that runs. Not for an event loop's own thread.

    Raises:
        EngineError: the engine was closed, or has failed.
    """
    return view_of(engine.arena())


def view_of(state: ArenaState) -> ArenaView:
    """The record of a state."""
    states = state.states
    return ArenaView(
        mode="contiguous" if state.mode == "contiguous" else "paged",
        block_size=state.block_size,
        block_bytes=state.block_bytes,
        num_blocks=len(states),
        states=states,
        free=states.count(FREE),
        cached=states.count(CACHED),
        used=states.count(USED),
        shared=states.count(SHARED),
        sequences=tuple(map(_sequence, state.sequences)),
    )


def _sequence(sequence: SequenceState) -> SequenceView:
    return SequenceView(
        id=sequence.seq_id,
        request=sequence.request,
        prompt_tokens=sequence.prompt_tokens,
        tokens=sequence.tokens,
        blocks=_runs(sequence.blocks),
    )


def _runs(blocks: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Runs of neighbours, in order: (3, 5) for 3, 4, 5."""
    if not blocks:
        return ()
    ends = [i for i, (left, right) in enumerate(pairwise(blocks)) if right != left + 1]
    starts = [0, *(end + 1 for end in ends)]
    return tuple((blocks[first], blocks[last]) for first, last in zip(starts, [*ends, len(blocks) - 1], strict=True))
