"""The batch's arrays, literally, for every form of step; and its refusals, which must leave the pager alone."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import ArenaError, ArenaFullError, RequestError
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.binding import batch_arrays
from mlxr.runtime.hosts.mlx.bindable import kernel_input, padded

ARRAYS = (
    "tokens",
    "positions",
    "slots",
    "query_start",
    "context_lens",
    "block_tables",
    "logit_rows",
    "query_tiles",
)


def make_pager(num_blocks=12, max_sequences=4):
    return Pager(num_blocks, 4, 3, max_sequences, context=11)


def with_history(pager, *lengths):
    """Settled sequences of these lengths."""
    seq_ids = [pager.add_sequence() for _ in lengths]
    for seq_id, length in zip(seq_ids, lengths, strict=True):
        if length:
            pager.append(seq_id, length)
    pager.take_copies()
    return seq_ids


def test_decode_and_prefill_mixed():
    pager = make_pager()
    a, b, c = with_history(pager, 4, 0, 6)  # blocks: a 0, c 1 2
    batch = Batch.build(
        [
            BatchRequest(c, [60], 6),
            BatchRequest(b, [10, 11, 12, 13, 14], 0, "all"),
            BatchRequest(a, [24, 25, 26], 4, "none"),
        ],
        pager,
        query_tile=2,
    )
    assert batch.tokens.tolist() == [60, 10, 11, 12, 13, 14, 24, 25, 26]
    assert batch.positions.tolist() == [6, 0, 1, 2, 3, 4, 4, 5, 6]
    assert batch.slots.tolist() == [10, 12, 13, 14, 15, 16, 20, 21, 22]
    assert batch.query_start.tolist() == [0, 1, 6, 9]
    assert batch.context_lens.tolist() == [7, 5, 7]
    assert batch.block_tables.tolist() == [[1, 2], [3, 4], [0, 5]]
    assert batch.logit_rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.query_tiles.tolist() == [[0, 0], [1, 1], [1, 3], [1, 5], [2, 6], [2, 8]]
    assert (batch.num_tokens, batch.num_seqs, batch.num_rows, batch.num_tiles) == (9, 3, 6, 6)
    assert not batch.is_decode
    assert batch.dims.tolist() == [9, 3, 6, 6, 0, 0, 0, 0] and batch.dims.dtype == np.uint32
    assert [pager.length(s) for s in (a, b, c)] == [7, 5, 7]
    for name in ARRAYS:
        assert getattr(batch, name).dtype == np.int32, name
        with pytest.raises(ValueError, match="read-only"):
            getattr(batch, name)[...] = 0


def test_decode():
    pager = make_pager()
    a, b = with_history(pager, 4, 2)
    batch = Batch.build([BatchRequest(a, [7], 4), BatchRequest(b, [8], 2)], pager, query_tile=16)
    assert batch.is_decode
    assert batch.logit_rows.tolist() == [0, 1] and batch.query_tiles.tolist() == [[0, 0], [1, 1]]
    assert batch.slots.tolist() == [8, 6]


def test_a_chunked_prefill_without_logits():
    pager = make_pager()
    (a,) = with_history(pager, 0)
    first = Batch.build([BatchRequest(a, [1, 2, 3, 4, 5], 0, "none")], pager, query_tile=8)
    assert first.num_rows == 0 and first.logit_rows.shape == (0,) and padded(first.logit_rows).tolist() == [0] * 8
    second = Batch.build([BatchRequest(a, [6, 7], 5, "last")], pager, query_tile=8)
    assert second.positions.tolist() == [5, 6] and second.slots.tolist() == [5, 6]
    assert second.logit_rows.tolist() == [1] and second.context_lens.tolist() == [7]


def test_types_begin_where_the_second_text_begins():
    pager = make_pager()
    a, b, c = with_history(pager, 4, 0, 0)
    alone = Batch.build([BatchRequest(a, [7], 4, second=4)], pager, query_tile=8)
    assert alone.token_types.tolist() == [1]
    both = Batch.build([BatchRequest(b, [1, 2, 3], 0, second=2), BatchRequest(c, [4, 5], 0)], pager, query_tile=8)
    assert both.token_types.tolist() == [0, 0, 1, 0, 0] and both.with_types is both
    plain = Batch.build([BatchRequest(a, [8], 5)], pager, query_tile=8)
    assert plain.token_types is None and "token_types" not in batch_arrays(plain)
    assert batch_arrays(plain.with_types)["token_types"].tolist() == [0]


def test_a_fork_reaches_the_tables_after_its_copy():
    pager = make_pager()
    (a,) = with_history(pager, 6)
    b = pager.fork(a)
    batch = Batch.build([BatchRequest(b, [1], 6), BatchRequest(a, [2], 6)], pager, query_tile=8)
    assert pager.take_copies() == [(1, 2)]
    assert batch.block_tables.tolist() == [[0, 2], [0, 1]] and batch.slots.tolist() == [10, 6]


def test_padded_adds_rows_up_to_eight_elements():
    assert padded(np.array([3, 4], dtype=np.int32)).tolist() == [3, 4, 0, 0, 0, 0, 0, 0]
    assert padded(np.array([[1, 2]], dtype=np.int32)).tolist() == [[1, 2], [0, 0], [0, 0], [0, 0]]
    assert padded(np.array([[1, 2, 3]], dtype=np.int32)).tolist() == [[1, 2, 3], [0, 0, 0], [0, 0, 0]]
    assert padded(np.array([3], dtype=np.int32)).dtype == np.int32
    enough = np.arange(8, dtype=np.int32)
    assert padded(enough) is enough


@pytest.mark.parametrize("count", [1, 3, 8, 11])
def test_a_kernel_input_begins_with_the_array_wherever_it_is(count):
    values = list(range(40, 40 + count))
    for array in (np.array(values, dtype=np.int32), mx.array(values, dtype=mx.int32)):
        bound = kernel_input(array)
        assert bound.dtype == mx.int32 and bound.size >= 8
        memory = np.array(bound, copy=False)
        first = np.lib.stride_tricks.as_strided(memory, (count,), (4,))
        assert first.tolist() == values, "a kernel sees memory, not shapes and strides"


def test_tokens_on_the_device_take_the_place_of_the_requests():
    pager = make_pager()
    with_history(pager, 4, 2)
    drawn = mx.array([7, 9], dtype=mx.int32)
    requests = [BatchRequest(0, [0], 4), BatchRequest(1, [0], 2)]
    batch = Batch.build(requests, pager, query_tile=8, tokens=drawn)
    assert batch.tokens is drawn and batch.is_decode and batch.num_tokens == 2
    assert batch.positions.tolist() == [4, 2]


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "a batch has no requests"),
        ([BatchRequest(0, [1], 4), BatchRequest(1, [], 2)], "sequence 1 has no tokens"),
        ([BatchRequest(0, [1], 4), BatchRequest(0, [2], 5)], "sequence 0 is in this batch twice"),
        ([BatchRequest(0, [1], 4), BatchRequest(1, [2], 3)], "sequence 1 starts at position 3, but the arena has 2"),
        ([BatchRequest(0, [1], 4), BatchRequest(1, [2], 2, "first")], "sequence 1 wants logits 'first'"),  # type: ignore[arg-type]
    ],
)
def test_bad_requests_append_nothing(requests, message):
    pager = make_pager()
    with_history(pager, 4, 2)
    with pytest.raises(RequestError, match=message):
        Batch.build(requests, pager, query_tile=8)
    assert (pager.length(0), pager.length(1)) == (4, 2)


@pytest.mark.parametrize(
    ("requests", "error", "message"),
    [
        ([BatchRequest(0, [1], 4), BatchRequest(1, [1] * 7, 2)], ArenaFullError, "needs 3 blocks of 4 tokens, 2 of 4"),
        ([BatchRequest(0, [1], 4), BatchRequest(1, [1] * 10, 2)], ArenaError, "exceed the context of 11"),
        ([BatchRequest(0, [1], 4), BatchRequest(5, [1], 0)], ArenaError, "unknown sequence 5"),
    ],
)
def test_what_the_arena_cannot_hold_appends_nothing(requests, error, message):
    pager = make_pager(num_blocks=4)
    with_history(pager, 4, 2)
    with pytest.raises(error, match=message):
        Batch.build(requests, pager, query_tile=8)
    assert (pager.length(0), pager.length(1), pager.num_free_blocks) == (4, 2, 2)


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1, 2**32 + 5, 10**30])
def test_a_token_beyond_int32_appends_nothing(token):
    pager = make_pager()
    (a,) = with_history(pager, 1)
    with pytest.raises(RequestError, match=f"sequence 0 has the token id {token}, expected an id of the vocabulary"):
        Batch.build([BatchRequest(a, [3, token, 5], 1)], pager, query_tile=8)
    assert pager.length(a) == 1


def test_the_ends_of_int32_are_kept():
    pager = make_pager()
    (a,) = with_history(pager, 1)
    ids = [2**31 - 1, -(2**31)]
    assert Batch.build([BatchRequest(a, ids, 1)], pager, query_tile=8).tokens.tolist() == ids
