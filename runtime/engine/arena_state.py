"""What the arena holds between two steps: the state of each block, and whose the blocks in use are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxr.runtime.engine.model import Model


@dataclass(frozen=True)
class SequenceState:
    """A sequence of the arena.

    Attributes:
        seq_id: the pager's number.
        request: counts requests as they came; None for a sequence that belongs to no request.
        prompt_tokens: tokens of its prompt; None without a request.
        tokens: tokens whose K and V have slots.
        blocks: its block table.
    """

    seq_id: int
    request: int | None
    prompt_tokens: int | None
    tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class ArenaState:
    """The arena between two steps.

    Attributes:
        mode: `paged` or `contiguous`.
        block_size: tokens of a block.
        block_bytes: bytes of K and V of a block, in all layers.
        states: a letter for each block; see `block_states`.
        sequences: those that use blocks.
    """

    mode: str
    block_size: int
    block_bytes: int
    states: str
    sequences: tuple[SequenceState, ...]


def arena_state(model: "Model") -> ArenaState:
    """The state of a model's arena. Only the thread that runs its steps may call this, between two of them."""
    pager = model.pager
    requests = {request.run.seq_id: request for request in model.core.scheduler.running}
    sequences = []
    for seq_id in pager.sequence_ids:
        request = requests.get(seq_id)
        sequences.append(
            SequenceState(
                seq_id=seq_id,
                request=None if request is None else request.run.number,
                prompt_tokens=None if request is None else request.prompt_length,
                tokens=pager.length(seq_id),
                blocks=pager.block_table(seq_id),
            )
        )
    mode = "contiguous" if pager.contiguous else "paged"
    return ArenaState(mode, pager.block_size, model.host.block_bytes, pager.block_states(), tuple(sequences))
