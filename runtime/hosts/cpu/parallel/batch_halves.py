"""A batch as two, for ranks that send their rows over a network: one computes while a sum of the other is under way."""

from dataclasses import replace

import numpy as np

from mlxr.runtime.hosts.batch import Batch, BlocksOfGroup, query_tiles_of

_FEWEST_TOKENS = 64
"""Of each half. Each reads all weights: with fewer tokens, that takes longer than what is sent."""
_MULTIPLE_OF = 16


def batch_halves(batch: Batch) -> tuple[Batch, Batch] | None:
    """The first tokens of the longest sequence, whose logits nobody wants, and all others, which may read their K, V.

    Args:
        batch: of a prefill step.

    Returns:
        Two batches with all tokens, in the order in which each layer must see them. None: it has too few tokens, the
        two would be too unequal, or the second would need a state that nobody keeps.
    """
    tokens, start = batch.num_tokens, batch.query_start
    if tokens < 2 * _FEWEST_TOKENS or batch.state_table is not None:
        return None
    longest = int(np.argmax(np.diff(start)))
    begin, end = int(start[longest]), int(start[longest + 1])
    wanted = batch.logit_rows[batch.logit_rows >= begin]
    limit = min(end - 1, int(wanted[0]) if len(wanted) else end)
    count = min(tokens // 2, limit - begin) // _MULTIPLE_OF * _MULTIPLE_OF
    if count < max(_FEWEST_TOKENS, tokens // 4):
        return None
    cut = slice(begin, begin + count)
    first_start = np.array([0, count], np.int32)
    first = replace(
        batch,
        tokens=np.asarray(batch.tokens)[cut],
        positions=batch.positions[cut],
        slots=batch.slots[cut],
        query_start=first_start,
        context_lens=batch.positions[cut][-1:] + np.int32(1),
        block_tables=batch.block_tables[longest : longest + 1],
        others=tuple(BlocksOfGroup(b.slots[cut], b.block_tables[longest : longest + 1]) for b in batch.others),
        logit_rows=np.zeros(0, np.int32),
        query_tiles=query_tiles_of(first_start, batch.query_tile),
    )
    second_start = np.where(start > begin, start - np.int32(count), start)
    second = replace(
        batch,
        tokens=np.delete(np.asarray(batch.tokens), cut),
        positions=np.delete(batch.positions, cut),
        slots=np.delete(batch.slots, cut),
        others=tuple(b._replace(slots=np.delete(b.slots, cut)) for b in batch.others),
        query_start=second_start,
        logit_rows=np.where(batch.logit_rows >= begin, batch.logit_rows - np.int32(count), batch.logit_rows),
        query_tiles=query_tiles_of(second_start, batch.query_tile),
    )
    return first, second
