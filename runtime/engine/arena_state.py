"""What the arena holds between two steps: the state of each block and slot, and whose those in use are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxr.compiler.artifact import LayerGroup
from mlxr.runtime.cache.arena_blocks import block_bytes

if TYPE_CHECKING:
    from mlxr.runtime.engine.model import Model


@dataclass(frozen=True)
class HeldBlocks:
    """The blocks of a group that a sequence holds.

    Attributes:
        first: the number of the first one among the sequence's blocks: above 0 once a window has left some.
        blocks: in the order of tokens.
    """

    first: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class SequenceState:
    """A sequence of the arena.

    Attributes:
        seq_id: the pager's number.
        request: counts requests as they came; None for a sequence that belongs to no request.
        prompt_tokens: tokens of its prompt; None without a request.
        tokens: tokens that have a place in blocks.
        held: its blocks, of each group.
        slots: the slot of each of its states, by how many tokens the state is after.
    """

    seq_id: int
    request: int | None
    prompt_tokens: int | None
    tokens: int
    held: tuple[HeldBlocks, ...]
    slots: dict[int, int]


@dataclass(frozen=True)
class GroupState:
    """A group of layers, which share a block table.

    Attributes:
        group: its layers and their window.
        block_bytes: bytes of a block in all its stores and layers. Those of the first group are of all ranks.
        states: a letter for each block; see `block_states`.
    """

    group: LayerGroup
    block_bytes: int
    states: str


@dataclass(frozen=True)
class SlotsState:
    """The slots of states, of a model that keeps some.

    Attributes:
        slot_bytes: bytes of a slot in all stores and layers.
        states: a letter for each slot; see `StateSlots.slot_states`.
        snapshots: the slots whose states can be found by their tokens; sequences may use them, too.
    """

    slot_bytes: int
    states: str
    snapshots: tuple[int, ...]


@dataclass(frozen=True)
class ArenaState:
    """The arena between two steps.

    Attributes:
        mode: `paged` or `contiguous`.
        block_size: tokens of a block.
        groups: every group of layers; the first keeps all tokens.
        slots: of states; None: the model keeps none.
        sequences: those that use blocks.
    """

    mode: str
    block_size: int
    groups: tuple[GroupState, ...]
    slots: SlotsState | None
    sequences: tuple[SequenceState, ...]


def arena_state(model: "Model") -> ArenaState:
    """The state of a model's arena. Only the thread that runs its steps may call this, between two of them."""
    pager, geometry = model.pager, model.arena.geometry
    requests = {request.run.seq_id: request for request in model.core.scheduler.running}
    numbers = range(len(geometry.groups))
    sequences = []
    for seq_id in pager.sequence_ids:
        request = requests.get(seq_id)
        sequences.append(
            SequenceState(
                seq_id=seq_id,
                request=None if request is None else request.run.number,
                prompt_tokens=None if request is None else request.prompt_length,
                tokens=pager.length(seq_id),
                held=tuple(HeldBlocks(*pager.held_blocks(seq_id, number)) for number in numbers),
                slots={} if pager.states is None else pager.states.slots_of(seq_id),
            )
        )
    groups = tuple(
        GroupState(
            group=group,
            block_bytes=block_bytes(geometry, number) if number else model.host.block_bytes,
            states=pager.block_states(number),
        )
        for number, group in enumerate(geometry.groups)
    )
    mode = "contiguous" if pager.contiguous else "paged"
    return ArenaState(mode, pager.block_size, groups, _slots(model), tuple(sequences))


def _slots(model: "Model") -> SlotsState | None:
    if model.pager.states is None:
        return None
    slots, geometry = model.pager.states.slots, model.arena.geometry
    return SlotsState(geometry.slots_bytes // geometry.num_slots, slots.slot_states(), tuple(sorted(slots.snapshots)))
