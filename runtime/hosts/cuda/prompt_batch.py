"""The batch of one prompt, filled up and packed as it is made: all that stands between a request and the first launch.

`Batch.build`, `padded_batch` and `Packed.of` make the same of any requests, by four times as many calls of NumPy. Each
is slow where the processor's caches have nothing of it, as is the case after a step.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mlxr.compiler.artifact import Plan
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest, Int32Array, PackedArrays, check_requests, token_ids_of
from mlxr.runtime.hosts.cuda.packed import places_of
from mlxr.runtime.hosts.mlx.padding import NO_SLOT, columns_for

_READ = {"token_ids", "positions", "slots", "query_start", "logit_rows", "query_tiles", "dims", "block_tables"}
"""What the phase of prompts reads in nearly all plans."""


class _Layout(NamedTuple):
    """Where the arrays of a batch are in one.

    Attributes:
        places: by name.
        empty: what stays the same, and no slots.
        counting: 0, 1, ..., as many as there are tokens.
    """

    places: dict[str, slice]
    empty: Int32Array
    counting: Int32Array


def is_packed_at_once(read: Collection[str]) -> bool:
    """Whether batches of one prompt can be made here for a phase that reads these arrays, and others than a batch's."""
    return {*read} >= _READ


def prompt_batch(request: BatchRequest, pager: Pager, plan: Plan, with_lengths: bool) -> Batch | None:
    """The padded batch of one request, its arrays packed as `batch_arrays` has them in order.

    Args:
        request: its tokens.
        pager: of the arena; the sequence grows.
        plan: of a model that has no types of tokens and no adapters.
        with_lengths: whether the phase reads `context_lens`, too.

    Returns:
        None: it is of another kind, and nothing has changed.

    Raises:
        RequestError: as `Batch.build`.
        ArenaFullError: likewise.
        ArenaError: likewise.
    """
    seq_id, tokens, start, rows, _, second = request
    count, tile, block = len(tokens), plan.query_tile, pager.block_size
    is_plain = second is None and not pager.others and pager.states is None
    if not is_plain or rows == "all" or not 2 <= count <= plan.max_tokens:
        return None
    check_requests([request], pager)
    ids, size = token_ids_of([request]), plan.padded_tokens(count)
    pager.grow_all([(seq_id, count)])
    table = pager.block_tables([seq_id])
    tiles, num_rows = -(-size // tile) + 1, int(rows == "last")
    columns = columns_for(table.shape[1], plan.arena.max_blocks_per_sequence)
    places, empty, counting = _layout(size, tiles, num_rows, columns, with_lengths)
    numbers, first = empty.copy(), start // block
    of = {name: numbers[place] for name, place in places.items()}
    of["token_ids"][:count] = ids
    of["positions"][:count] = counting[:count] + np.int32(start) if start else counting[:count]
    slots = (table[0, first:, None] * np.int32(block) + counting[:block]).reshape(-1)
    of["slots"][:count] = slots[start - first * block :][:count]
    of["query_start"][1] = count
    lengths = of["context_lens"] if with_lengths else np.empty(1, np.int32)
    lengths[0] = start + count
    of["logit_rows"][:] = count - 1
    starts = [*range(0, count, tile), *range(count, count + tile * tiles, tile)][:tiles]
    own = -(-count // tile)
    of["query_tiles"][1::2] = [min(begin, size) for begin in starts]
    of["query_tiles"][2 * own :: 2] = [-1 - min(size - min(begin, size), tile) for begin in starts[own:]]
    of["block_tables"][1 : 1 + table.shape[1]] = table[0]
    return Batch(
        tokens=of["token_ids"],
        positions=of["positions"],
        slots=of["slots"],
        query_start=of["query_start"],
        context_lens=lengths,
        block_tables=table,
        logit_rows=of["logit_rows"],
        query_tiles=of["query_tiles"].reshape(-1, 2),
        query_tile=tile,
        packed=PackedArrays(numbers, places),
    )


@lru_cache(maxsize=256)
def _layout(size: int, tiles: int, rows: int, columns: int, with_lengths: bool) -> _Layout:
    sizes = [("token_ids", size), ("positions", size), ("slots", size), ("query_start", 2)]
    sizes += [("context_lens", 1)] if with_lengths else []
    sizes += [("logit_rows", rows), ("query_tiles", 2 * tiles), ("dims", 8), ("block_tables", 1 + columns)]
    places, end = places_of(tuple(sizes))
    empty = np.zeros(end, np.int32)
    empty[places["slots"]] = NO_SLOT
    empty[places["dims"]][:4] = (size, 1, rows, tiles)
    empty[places["block_tables"]][0] = columns
    return _Layout(places, empty, np.arange(max(size, 1024), dtype=np.int32))
