"""The steps of a head: what it reads of sequences of the model's arena. Nothing of the sequences changes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BlocksOfGroup, Int32Array, layout_of_decode, query_tiles_of


class HeadPart(NamedTuple):
    """What the head reads of a sequence in a step.

    Attributes:
        seq_id: the sequence, which has these positions, and where it guesses one more.
        start: the first position.
        tokens: of each position the token that follows.
    """

    seq_id: int
    start: int
    tokens: Sequence[int]


def head_batch(pager: Pager, query_tile: int, parts: Sequence[HeadPart], *, with_rows: bool = True) -> Batch:
    """The metadata of a step.

    Args:
        pager: of the model's arena.
        query_tile: see `Batch`.
        parts: what it reads of each sequence.
        with_rows: whether it guesses after each of them; the sequences then have one more position.
    """
    counts = np.array([len(part.tokens) for part in parts], np.int32)
    starts = np.array([part.start for part in parts], np.int32)
    query_start = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    positions = np.repeat(starts - query_start[:-1], counts) + np.arange(query_start[-1], dtype=np.int32)
    sequence = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
    groups = _blocks(pager, parts, sequence, positions)
    return Batch(
        tokens=np.concatenate([np.asarray(part.tokens, np.int32) for part in parts]),
        positions=positions,
        slots=groups[0].slots,
        query_start=query_start,
        context_lens=starts + counts,
        block_tables=groups[0].block_tables,
        logit_rows=query_start[1:] - np.int32(1) if with_rows else np.zeros(0, np.int32),
        query_tiles=query_tiles_of(query_start, query_tile),
        query_tile=query_tile,
        others=tuple(groups[1:]),
    )


def guess_batches(pager: Pager, query_tile: int, parts: Sequence[HeadPart], most: Sequence[int]) -> list[Batch]:
    """The steps after one that has read parts: each reads the newest guess of every sequence that has one more.

    Args:
        pager: of the model's arena.
        query_tile: see `Batch`.
        parts: what has been read, of sequences with one more position for each guess.
        most: guesses of each, which fall. Their tokens are those of `Host.chain`.
    """
    counts = [sum(each > guess for each in most) for guess in range(1, most[0])]
    starts = [part.start + len(part.tokens) for part in parts]
    positions = np.array([s + more for more, count in enumerate(counts) for s in starts[:count]], np.int32)
    sequence = np.array([seq for count in counts for seq in range(count)], np.int32)
    groups = _blocks(pager, parts, sequence, positions)
    context_lens, batches, begin = positions + np.int32(1), [], 0
    for count in counts:
        own = slice(begin, begin + count)
        begin += count
        query_start, query_tiles, logit_rows = layout_of_decode(count)
        first, *others = [BlocksOfGroup(slots[own], tables[:count]) for slots, tables in groups]
        batches.append(
            Batch(
                tokens=positions[own],  # any
                positions=positions[own],
                slots=first.slots,
                query_start=query_start,
                context_lens=context_lens[own],
                block_tables=first.block_tables,
                logit_rows=logit_rows,
                query_tiles=query_tiles,
                query_tile=query_tile,
                others=tuple(others),
            )
        )
    return batches


def _blocks(
    pager: Pager, parts: Sequence[HeadPart], sequence: Int32Array, positions: Int32Array
) -> list[BlocksOfGroup]:
    """Where each group of layers has tokens, of which the sequences are given by their place among the parts."""
    seq_ids, size = [part.seq_id for part in parts], np.int32(pager.block_size)
    tables = [pager.block_tables(seq_ids, group) for group in range(1 + len(pager.others))]
    return [
        BlocksOfGroup((table[sequence, positions // size] * size + positions % size).astype(np.int32), table)
        for table in tables
    ]
