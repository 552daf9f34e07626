"""The steps of a head: what it reads of sequences of the model's arena. Nothing of the sequences changes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BlocksOfGroup, Int32Array, layout_of_decode, query_tiles_of

_FIRST_TILE: Int32Array = np.zeros((1, 2), np.int32)


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
    if len(parts) == 1:
        return _batch_of_one(pager, query_tile, parts[0], with_rows=with_rows)
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


def _batch_of_one(pager: Pager, query_tile: int, part: HeadPart, *, with_rows: bool) -> Batch:
    """`head_batch` of one part, in less time: most often there is one, with few tokens."""
    count = len(part.tokens)
    positions = np.arange(part.start, part.start + count, dtype=np.int32)
    ends = np.array([0, count, part.start + count], np.int32)
    size = np.int32(pager.block_size)
    blocks, within, groups = positions // size, positions % size, []
    for group in range(1 + len(pager.others)):
        table = pager.block_tables([part.seq_id], group)
        groups.append(BlocksOfGroup(table[0][blocks] * size + within, table))
    return Batch(
        tokens=np.array(part.tokens, np.int32),
        positions=positions,
        slots=groups[0].slots,
        query_start=ends[:2],
        context_lens=ends[2:],
        block_tables=groups[0].block_tables,
        logit_rows=ends[1:2] - np.int32(1) if with_rows else np.zeros(0, np.int32),
        query_tiles=_FIRST_TILE if count <= query_tile else query_tiles_of(ends[:2], query_tile),
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
    context_lens, batches, begin = positions + np.int32(1), list[Batch](), 0
    places: list[BlocksOfGroup] = []
    for count in counts:
        own = slice(begin, begin + count)
        begin += count
        query_start, query_tiles, logit_rows = layout_of_decode(count)
        if batches and batches[-1].num_tokens == count:  # with the same tables, of which hosts make use
            tables_of = [place.block_tables for place in places]
        else:
            tables_of = [tables[:count] for _, tables in groups]
        places = [BlocksOfGroup(slots[own], of) for (slots, _), of in zip(groups, tables_of, strict=True)]
        first, *others = places
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
