"""The pager's rules, one by one: tables, slots, forks, copies, and every refusal with its message."""

import pytest

from mlxr.compiler.errors import ArenaError, ArenaFullError
from mlxr.compiler.formats.dtypes import DType
from mlxr.runtime.cache.pager import Pager
from mlxr_tests.kv_arena import kv_arena


def make_pager(num_blocks=10, block_size=4, max_blocks=5, max_sequences=4, **options):
    return Pager(num_blocks, block_size, max_blocks, max_sequences, **options)


def grown(pager, num_tokens):
    """A settled sequence of `num_tokens` tokens."""
    seq_id = pager.add_sequence()
    pager.append(seq_id, num_tokens)
    pager.take_copies()
    return seq_id


def state(pager):
    return (
        {seq_id: (pager.length(seq_id), pager.block_table(seq_id)) for seq_id in pager._sequences},
        list(pager._pool.free_blocks),
        list(pager._pool.references),
        list(pager._pool.pins),
        dict(pager._copies.source_of),
    )


def test_slots_follow_the_block_table():
    pager = make_pager()
    a, b = pager.add_sequence(), pager.add_sequence()
    assert pager.append(a, 3) == [0, 1, 2]
    assert pager.append(b, 6) == [4, 5, 6, 7, 8, 9]
    assert pager.append(a, 3) == [3, 12, 13]
    assert pager.block_table(a) == (0, 3) and pager.block_table(b) == (1, 2)
    assert (pager.length(a), pager.length(b)) == (6, 6)
    assert pager.num_free_blocks == 6 and pager.num_sequences == 2
    assert pager.take_copies() == []
    pager.check_integrity()


@pytest.mark.parametrize("count", [1, 3, 6])
def test_equal_growth_gets_the_slots_that_append_all_gives(count: int) -> None:
    pager, other = make_pager(), make_pager()
    ids = [grown(pager, length) for length in (1, 4, 6)]
    assert [grown(other, length) for length in (1, 4, 6)] == ids
    for _ in range(8 // count):
        slots = list(pager.append_to_each(ids, [pager.length(seq_id) for seq_id in ids], count))
        assert [slots[i :: len(ids)] for i in range(len(ids))] == other.append_all([(seq_id, count) for seq_id in ids])
        assert state(pager) == state(other)
        pager.check_integrity()


def test_equal_growth_changes_nothing_where_that_is_not_plain():
    pager = make_pager(num_blocks=9, max_sequences=5)
    a, b, full = grown(pager, 4), grown(pager, 6), grown(pager, 20)
    before = state(pager)
    for seq_ids, lengths in (([a, b], [4, 5]), ([a, 99], [4, 0]), ([b, b], [6, 6]), ([a, full], [4, 20])):
        assert pager.append_to_each(seq_ids, lengths) is None
    assert pager.append_to_each([a, b], [4, 6], 5) is None, "one block is free, and three are needed"
    assert state(pager) == before
    pager.fork(b)
    assert pager.append_to_each([a, b], [4, 6]) is None, "b's last block is shared"
    pager.append(a, 3)
    last = pager.add_sequence()
    assert pager.num_free_blocks == 0 and pager.append_to_each([last], [0]) is None, "no block is free"


def test_equal_growth_notices_what_has_changed_since_the_last_time():
    pager = make_pager()
    a, b = grown(pager, 3), grown(pager, 5)
    assert pager.append_to_each([a, b], [3, 5]) == [3, 4 + 5]
    pager.take_copies()
    pager.truncate(b, 4)
    assert pager.append_to_each([a, b], [4, 6]) is None
    assert pager.append_to_each([a, b], [4, 4]) == [4 * 2, 4 * 3]
    pager.take_copies()
    fork = pager.fork(b)
    assert pager.append_to_each([a, b], [5, 5]) is None
    pager.free(fork)
    assert pager.append_to_each([a, b], [5, 5]) == [4 * 2 + 1, 4 * 3 + 1]
    assert pager.block_tables([a, b]).tolist() == [[0, 2], [1, 3]]
    pager.free(b)
    assert pager.append_to_each([a, b], [6, 0]) is None
    with pytest.raises(ArenaError, match=f"unknown sequence {b}"):
        pager.block_tables([a, b])
    pager.check_integrity()


def test_a_fork_shares_blocks_until_one_side_writes():
    pager = make_pager()
    a = grown(pager, 6)
    b = pager.fork(a)
    assert pager.block_table(b) == pager.block_table(a) == (0, 1)
    assert pager.length(b) == 6 and pager.num_free_blocks == 8
    assert pager.append(b, 1) == [2 * 4 + 2]
    assert pager.block_table(a) == (0, 1) and pager.block_table(b) == (0, 2)
    assert pager.append(a, 1) == [1 * 4 + 2], "the last holder writes in place"
    pager.check_integrity()
    assert pager.take_copies() == [(1, 2)]
    assert pager.take_copies() == []
    pager.check_integrity()


def test_a_fork_at_a_block_border_copies_nothing():
    pager = make_pager()
    a = grown(pager, 8)
    b = pager.fork(a)
    assert pager.append(b, 1) == [8] and pager.append(a, 1) == [12]
    assert pager.take_copies() == []


def test_the_source_of_a_copy_survives_its_last_owner():
    pager = make_pager(num_blocks=3)
    a = grown(pager, 2)
    b = pager.fork(a)
    pager.append(b, 1)
    pager.free(a)
    pager.check_integrity()
    assert pager.num_free_blocks == 1, "block 0 is still to be copied from"
    assert pager.take_copies() == [(0, 1)]
    assert pager.num_free_blocks == 2
    pager.check_integrity()


def test_a_copy_nobody_needs_is_dropped():
    pager = make_pager()
    a = grown(pager, 6)
    b = pager.fork(a)
    pager.append(b, 1)
    pager.truncate(b, 4)
    assert pager.take_copies() == []
    pager.check_integrity()


def test_a_copy_outlives_a_truncation_within_its_block():
    pager = make_pager()
    a = grown(pager, 6)
    b = pager.fork(a)
    pager.append(b, 2)
    pager.truncate(b, 5)
    assert not pager.can_fork(b), "block 2 is not filled yet: a fork would make it the source of another copy"
    assert pager.take_copies() == [(1, 2)]
    assert pager.can_fork(b)


def test_truncating_a_fork_into_a_full_shared_block_makes_it_copy():
    pager = make_pager()
    a = grown(pager, 8)
    b = pager.fork(a)
    pager.truncate(b, 5)
    assert pager.append(b, 1) == [2 * 4 + 1]
    assert pager.take_copies() == [(1, 2)]
    assert pager.block_table(a) == (0, 1)


def test_truncate_releases_whole_blocks_only():
    pager = make_pager()
    a = grown(pager, 13)
    pager.truncate(a, 5)
    assert pager.block_table(a) == (0, 1) and pager.num_free_blocks == 8
    pager.truncate(a, 5)
    assert pager.length(a) == 5
    assert pager.append(a, 4) == [5, 6, 7, 8], "blocks come back in the order they left"
    pager.truncate(a, 0)
    assert pager.block_table(a) == () and pager.num_free_blocks == 10
    pager.check_integrity()


@pytest.mark.parametrize("length", [-1, 7])
def test_truncate_refuses_other_lengths(length):
    pager = make_pager()
    a = grown(pager, 6)
    before = state(pager)
    with pytest.raises(ArenaError, match=f"cannot truncate sequence 0 to {length}, expected 0 to 6 tokens"):
        pager.truncate(a, length)
    assert state(pager) == before


def test_tables_have_the_columns_that_the_longest_sequence_uses() -> None:
    pager = Pager(9, 4, 1 << 13, 3)
    a, b = grown(pager, 6), grown(pager, 13)
    assert pager.block_tables([b, a]).tolist() == [[2, 3, 4, 5], [0, 1, 0, 0]]
    assert pager.block_tables([a]).tolist() == [[0, 1]]
    pager.append(a, 3)
    assert pager.block_tables([a]).tolist() == [[0, 1, 6]]


def test_fork_refuses_tokens_that_are_not_written_yet():
    pager = make_pager()
    a = grown(pager, 4)
    pager.append(a, 2)
    assert not pager.can_fork(a)
    with pytest.raises(ArenaError, match="sequence 0 has 6 tokens, of which 4 are in its blocks"):
        pager.fork(a)
    pager.take_copies()
    assert pager.can_fork(a)
    assert pager.fork(a) == 1


def test_a_full_arena_changes_nothing_and_says_what_to_do():
    pager = make_pager(num_blocks=4, max_sequences=3)
    a, b = grown(pager, 6), grown(pager, 4)
    before = state(pager)
    assert pager.can_append_all([(b, 4)]) and pager.can_append_all([(a, 2)])
    assert not pager.can_append_all([(a, 3), (b, 1)])
    with pytest.raises(
        ArenaFullError, match=r"needs 2 blocks of 4 tokens, 1 of 4 are free; free or truncate .*cache\.num_blocks"
    ):
        pager.append_all([(a, 3), (b, 1)])
    assert state(pager) == before
    pager.free(a)
    assert pager.append(b, 1) == [0]


def test_copy_on_write_counts_against_free_blocks():
    pager = make_pager(num_blocks=2)
    a = grown(pager, 2)
    b, c = pager.fork(a), pager.fork(a)
    assert pager.can_append_all([(a, 1)])
    assert not pager.can_append_all([(a, 1), (b, 1)]), "two of the three must move"
    pager.free(c)
    assert pager.can_append_all([(a, 1), (b, 1)]), "one of the two must move"
    assert pager.append_all([(a, 1), (b, 1)]) == [[4 + 2], [2]]


def test_the_context_is_a_limit_in_tokens():
    pager = make_pager(context=18)
    a = grown(pager, 18)
    assert not pager.can_append_all([(a, 1)])
    before = state(pager)
    with pytest.raises(
        ArenaError, match=r"sequence 0 has 18 tokens, 1 more exceed the context of 18; .*model\.context"
    ):
        pager.append(a, 1)
    assert state(pager) == before
    b = pager.add_sequence()
    with pytest.raises(ArenaError, match="sequence 1 has 0 tokens, 19 more exceed the context of 18") as error:
        pager.append(b, 19)
    assert not isinstance(error.value, ArenaFullError)


def test_without_a_context_the_longest_table_is_the_limit():
    pager = make_pager(num_blocks=9, max_blocks=3)
    a = pager.add_sequence()
    assert pager.context == 12 and pager.can_append_all([(a, 12)]) and not pager.can_append_all([(a, 13)])


def test_a_failing_growth_leaves_the_others_alone():
    pager = make_pager()
    a = pager.add_sequence()
    before = state(pager)
    for growths, message in (
        ([(a, 1), (99, 1)], "unknown sequence 99, the arena holds: 0"),
        ([(a, 1), (a, 1)], "cannot append tokens twice to sequence 0"),
        ([(a, 0)], "cannot append 0 tokens to sequence 0"),
        ([(a, -2)], "cannot append -2 tokens to sequence 0"),
    ):
        with pytest.raises(ArenaError, match=message):
            pager.append_all(growths)
        assert state(pager) == before
    assert not pager.can_append_all([(a, 0)])


def test_too_many_sequences():
    pager = make_pager(max_sequences=2)
    a, b = pager.add_sequence(), pager.add_sequence()
    assert not pager.can_add_sequence() and not pager.can_fork(a)
    with pytest.raises(ArenaError, match=r"holds 2 of 2 sequences; free one, .*cache\.max_sequences"):
        pager.add_sequence()
    with pytest.raises(ArenaError, match="holds 2 of 2 sequences"):
        pager.fork(b)
    pager.free(b)
    assert pager.can_add_sequence() and pager.can_fork(a)


@pytest.mark.parametrize(
    "call",
    [
        lambda p, s: p.length(s),
        lambda p, s: p.block_table(s),
        lambda p, s: p.append(s, 1),
        lambda p, s: p.can_append_all([(s, 1)]),
        lambda p, s: p.fork(s),
        lambda p, s: p.can_fork(s),
        lambda p, s: p.truncate(s, 0),
        lambda p, s: p.free(s),
    ],
)
def test_a_freed_sequence_is_unknown_for_good(call):
    pager = make_pager()
    stale = grown(pager, 3)
    pager.free(stale)
    assert pager.add_sequence() != stale
    with pytest.raises(ArenaError, match="unknown sequence 0, the arena holds: 1"):
        call(pager, stale)


def test_a_contiguous_arena_keeps_the_identity_table():
    pager = make_pager(num_blocks=5, max_sequences=1, contiguous=True)
    for length in (20, 7, 13):
        a = pager.add_sequence()
        assert pager.append(a, length) == list(range(length))
        pager.truncate(a, 5)
        assert pager.append(a, 10) == list(range(5, 15))
        pager.check_integrity()
        pager.take_copies()
        assert not pager.can_fork(a)
        with pytest.raises(ArenaError, match=r"cannot fork it; compile with cache\.mode: paged"):
            pager.fork(a)
        with pytest.raises(ArenaError, match="holds 1 of 1 sequences"):
            pager.add_sequence()
        pager.free(a)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"block_size": 0}, "block_size is 0"),
        ({"max_blocks": 0}, "max_blocks_per_sequence is 0"),
        ({"max_sequences": 0}, "max_sequences is 0"),
        ({"context": 0}, "context is 0"),
        ({"context": 21}, "context 21 exceeds the longest block table: 5 blocks x 4 tokens = 20"),
        ({"contiguous": True}, "contiguous arena holds 1 sequence, got max_sequences 4"),
    ],
)
def test_impossible_sizes_are_refused(options, message):
    with pytest.raises(ArenaError, match=message):
        make_pager(**options)


def test_from_geometry_takes_every_limit():
    geometry = kv_arena("layer", "contiguous", 7, 3, 4, 2, 32, DType.F16, 5, 1, 18)
    pager = Pager.from_geometry(geometry)
    limits = (pager.num_blocks, pager.block_size, pager.max_blocks_per_sequence, pager.max_sequences, pager.context)
    assert limits == (7, 4, 5, 1, 18) and pager.contiguous


def _corrupt(pager, what):
    pool, sequences = pager._pool, pager._sequences
    match what:
        case "reference":
            pool.references[0] += 1
        case "pin":
            pool.pins[3] += 1
        case "leak":
            pool.free_blocks.pop()
        case "free twice":
            pool.free_blocks.append(pool.free_blocks[0])
        case "free and used":
            pool.free_blocks.append(0)
        case "length":
            sequences[0].length = 3
        case "duplicate":
            sequences[0].blocks[1] = 0
            pool.references[0], pool.references[1] = 2, 0
            pool.free_blocks.append(1)
        case "settled":
            sequences[0].settled = 7
        case "shared write":
            sequences[1].settled = 5
        case "chained copy":
            pager._copies.source_of = {3: 1, 1: 2}
            pool.pins[1] = pool.pins[2] = 1
        case "contiguous":
            pager.contiguous = True
        case "row":
            pager._tables[sequences[0].row, 1] = 3


@pytest.mark.parametrize(
    ("what", "equation"),
    [
        ("reference", r"references of block 0 == in tables does not hold: 3 != 2"),
        ("pin", r"pins of block 3 == copies from it does not hold: 1 != 0"),
        ("leak", r"neither free nor idle nor used == none does not hold: \{\d+\} != set\(\)"),
        ("free twice", r"length of the free list == distinct blocks in it does not hold: \d+ != \d+"),
        ("free and used", r"blocks free and used == none does not hold: \{0\}"),
        ("length", r"sequence 0: blocks in the table == ceil\(length / block_size\) does not hold: 2 != 1"),
        ("duplicate", r"sequence 0: blocks in the table == distinct ones does not hold: 2 != 1"),
        ("settled", r"sequence 0: 0 <= settled <= length <= context does not hold: 0 <= 7 <= 6 <= 20"),
        ("shared write", r"sequence 1: references of written block 1 == 1 does not hold: 2 != 1"),
        ("chained copy", r"copy sources that are destinations == none does not hold: \{1\}"),
        ("row", r"sequence 0: block table == blocks does not hold: \[0, 3, 0, 0, 0\] != \[0, 1, 0, 0, 0\]"),
        ("contiguous", r"sequence 2: contiguous table == identity does not hold: \[2\] != \[0\]"),
    ],
)
def test_check_integrity_names_the_failed_equation(what, equation):
    pager = make_pager()
    a = grown(pager, 6)
    if what == "duplicate":
        pager.check_integrity()
    else:
        pager.fork(a)
        grown(pager, 3)
        pager.check_integrity()
    _corrupt(pager, what)
    with pytest.raises(ArenaError, match=equation):
        pager.check_integrity()
