"""Pads a step of prompts to a size that has been seen before.

GPU libraries prepare each shape when they first meet it (cuBLAS takes milliseconds for this, a trace of MLX's tens of
milliseconds), and prompts come in every length. So the number of tokens of a step is one of a few. The tokens added
belong to no sequence and write no slot, and nobody reads their results.
"""

from dataclasses import replace

import numpy as np

from mlxr.compiler.artifact import Plan
from mlxr.runtime.hosts.batch import AdapterRows, Batch

_COLUMNS = 256
"""Fewest columns of block tables: of 4,096 tokens in blocks of 16."""
NO_SLOT = -1
"""The slot of a token whose keys and values are not stored."""


def padded_batch(batch: Batch, plan: Plan) -> Batch:
    """The batch with tokens added after its own; the batch itself if its ids are lazy or the plan pads nothing.

    The number of tiles becomes the largest that any batch with so many tokens and sequences has. An added tile is
    (-1 - n, first token): the attention's result is 0 for these n tokens. Together, these are the tokens added.
    """
    if not plan.pads or batch.packed is not None or not isinstance(batch.tokens, np.ndarray):
        return batch
    count = batch.num_tokens
    size = plan.padded_tokens(count)
    more, tile = size - count, batch.query_tile
    tiles = -(-size // tile) + batch.num_seqs - batch.num_tiles
    starts = [min(start, size) for start in range(count, count + tile * tiles, tile)]
    added = [(-1 - min(size - start, tile), start) for start in starts]
    query_tiles = np.array([(0, 0), *added], np.int32)[1:]
    return replace(
        batch,
        tokens=_more(batch.tokens, more, 0),
        positions=_more(batch.positions, more, 0),
        slots=_more(batch.slots, more, NO_SLOT),
        token_types=None if batch.token_types is None else _more(batch.token_types, more, 0),
        others=tuple(blocks._replace(slots=_more(blocks.slots, more, NO_SLOT)) for blocks in batch.others),
        query_tiles=np.concatenate([batch.query_tiles, query_tiles]),
        adapters=None if batch.adapters is None else _without_adapters(batch.adapters, more),
    )


def table_columns(batch: Batch, most: int) -> int:
    """How many columns block tables have on the device: one of few numbers, since each makes a trace.

    They grow with the longest sequence and not with the model's context, because they are uploaded.
    """
    return columns_for(batch.block_tables.shape[1], most)


def columns_for(used: int, most: int) -> int:
    """The same for tables of which so many columns are used."""
    return next(columns for columns in all_table_columns(most) if columns >= min(used, most))


def all_table_columns(most: int) -> list[int]:
    """What `table_columns` may give, for tables of so many columns at most."""
    columns = [_COLUMNS]
    while columns[-1] < most:
        columns.append(4 * columns[-1])
    return [*columns[:-1], most]


def state_columns(batch: Batch, most: int) -> int | None:
    """How many columns a table of states has on the device: of decode two, of all else the most.

    Each number makes a trace, and `warm_up` makes those of both.
    """
    return None if batch.state_table is None else 2 if batch.is_decode else most


def _without_adapters(adapters: AdapterRows, count: int) -> AdapterRows:
    """The adapters of tokens, with so many tokens after them that use none."""
    return AdapterRows(_more(adapters.ids, count, -1), np.pad(adapters.scales, (0, count)))


def _more(numbers: np.ndarray, count: int, value: int) -> np.ndarray:
    more = np.empty(len(numbers) + count, np.int32)
    more[: len(numbers)], more[len(numbers) :] = numbers, value
    return more
