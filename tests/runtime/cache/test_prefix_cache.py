"""The prefix cache's rules, one by one: what is found, what is shared, what is copied, what is evicted first."""

import pytest

from mlxr.compiler.errors import ArenaError, ArenaFullError
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.pager import Pager, Prefix

ROOT = root_digest("weights", "artifact", "f16", "", "")
PROMPT = [*range(100, 114)]  # three blocks of four tokens, and two tokens


def hashes(root=ROOT):
    return BlockHashes(root, 4)


def make_pager(num_blocks=10, max_sequences=4, **options):
    return Pager(num_blocks, 4, 5, max_sequences, **options)


def start(pager, tokens, root=ROOT, **options):
    """Adds a sequence of these tokens, computed and committed; returns its id and how many were cached."""
    prefix = pager.find_prefix(tokens, hashes(root), **options)
    seq_id = pager.add_sequence(prefix)
    pager.append(seq_id, len(tokens) - prefix.num_tokens)
    pager.take_copies()
    pager.commit(seq_id, tokens, hashes(root), len(tokens))
    pager.check_integrity()
    return seq_id, prefix.num_tokens


def found(pager, tokens, root=ROOT, **options):
    prefix = pager.find_prefix(tokens, hashes(root), **options)
    return prefix.num_tokens, prefix.blocks


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("is_freed", [False, True])
@pytest.mark.parametrize(
    ("prompt", "count", "whole"),
    [
        ([*PROMPT, 7], 14, 12),
        (PROMPT, 13, 12),  # the last token's logits are wanted
        (PROMPT[:12], 11, 8),
        ([*PROMPT[:10], 7, 7, 7], 10, 8),
        ([*PROMPT[:3], 7, 7, 7], 3, 0),
        (PROMPT[1:], 0, 0),
        (PROMPT[:1], 0, 0),
        ([], 0, 0),
    ],
)
def test_what_is_found(prompt, count, whole, is_freed, contiguous):
    pager = make_pager(max_sequences=1 if contiguous else 4, contiguous=contiguous)
    seq_id, _ = start(pager, PROMPT)
    blocks = tuple(pager.blocks_of(seq_id))
    if is_freed:
        pager.free(seq_id)
        assert (pager.num_free, pager.num_idle, pager.num_used, pager.num_sequences) == (10, 4, 0, 0)
    elif contiguous:
        return
    assert found(pager, prompt) == (count, blocks[: -(-count // 4)])
    assert found(pager, prompt, whole_blocks=True) == (whole, blocks[: whole // 4])
    assert found(pager, prompt, root_digest("weights", "artifact", "f16", "", "salt")) == (0, ())
    pager.check_integrity()


@pytest.mark.parametrize("contiguous", [False, True])
def test_tokens_that_are_not_committed_are_not_found(contiguous):
    pager = make_pager(max_sequences=1, contiguous=contiguous)
    seq_id = pager.add_sequence()
    pager.append(seq_id, 14)
    with pytest.raises(ArenaError, match=r"cannot commit 14 .* of which 0 are in its blocks.*after take_copies\(\)"):
        pager.commit(seq_id, PROMPT, hashes(), 14)
    pager.take_copies()
    pager.commit(seq_id, PROMPT, hashes(), 6)
    assert contiguous or found(pager, PROMPT)[0] == 6
    pager.free(seq_id, PROMPT, hashes(), 9)
    assert found(pager, PROMPT)[0] == 9 and pager.num_idle == 3


def test_sequences_share_full_blocks_and_copy_the_last_one():
    pager = make_pager()
    a, _ = start(pager, PROMPT)
    prefix = pager.find_prefix(PROMPT, hashes())
    b = pager.add_sequence(prefix)
    assert pager.blocks_of(b) == pager.blocks_of(a) == [0, 1, 2, 3] and pager.num_shared == 4
    assert pager.append(b, 1) == [4 * 4 + 1]
    assert pager.take_copies() == [(3, 4)]
    pager.check_integrity()
    assert pager.append(a, 1) == [3 * 4 + 2], "the last one that has a block writes in place"


def test_an_idle_block_is_taken_over_only_where_it_loses_nothing():
    pager = make_pager()
    a, _ = start(pager, PROMPT)
    pager.free(a)
    b, count = start(pager, [*PROMPT, 7])
    assert count == 14 and pager.blocks_of(b) == [0, 1, 2, 3] and pager.num_used == 4
    pager.free(b)
    c, count = start(pager, [*PROMPT[:13], 8])
    assert count == 13 and pager.blocks_of(c) == [0, 1, 2, 4]
    assert found(pager, [*PROMPT, 7, 7])[0] == 15, "what b left is still there"


def test_a_full_arena_takes_over_what_nobody_else_needs():
    pager = make_pager(num_blocks=4, record_evictions=True)
    a, _ = start(pager, PROMPT)
    pager.free(a)
    prefix = pager.find_prefix([*PROMPT[:13], 8, 9], hashes())
    assert pager.blocks_to_begin(prefix, 16) == 4
    b = pager.add_sequence(prefix)
    assert pager.num_free == 0 and pager.append(b, 2) == [13, 14]
    pager.check_integrity()
    assert pager.take_evicted() == [], "its block was partly filled"


def test_copies_are_made_as_long_as_blocks_are_left():
    pager = make_pager(num_blocks=9)
    for root in ("a", "b"):
        pager.free(start(pager, PROMPT, root_digest(root))[0])
    prefixes = [pager.find_prefix([*PROMPT[:13], 8], hashes(root_digest(root))) for root in ("a", "b")]
    a, b = [pager.add_sequence(prefix) for prefix in prefixes]
    assert pager.num_free == 1
    assert pager.append_all([(a, 1), (b, 1)]) == [[8 * 4 + 1], [7 * 4 + 1]]
    assert pager.take_copies() == [(3, 8)]
    pager.check_integrity()


def test_a_block_that_is_still_to_be_copied_to_is_not_found():
    pager = make_pager(num_blocks=20)
    a, _ = start(pager, PROMPT)
    pager.add_sequence(pager.find_prefix(PROMPT, hashes()))
    pager.append(a, 1)
    assert found(pager, PROMPT) == (12, (0, 1, 2))
    pager.take_copies()
    assert found(pager, PROMPT) == (13, (0, 1, 2, 4))


def test_a_fork_keeps_blocks_that_could_not_be_found_without_it():
    pager = make_pager()
    start(pager, PROMPT)
    b = pager.add_sequence()
    pager.append(b, 14)
    pager.take_copies()
    pager.fork(b)
    pager.commit(b, PROMPT, hashes(), 14)
    assert pager.blocks_of(b) == [4, 5, 6, 7]
    pager.free(b)
    pager.check_integrity()
    assert pager.num_idle == 0 and pager.num_used == 8


def test_leaves_are_evicted_first_and_least_recently_used_ones():
    pager = make_pager(num_blocks=6, record_evictions=True)
    a, _ = start(pager, [*range(13)])  # blocks 0 to 3
    pager.free(a)
    b, _ = start(pager, [*range(20, 28)])  # blocks 4 and 5
    pager.free(b)
    assert pager.num_idle == 6
    start(pager, [*range(4), 99])  # uses block 0
    (evicted,) = pager.take_evicted() or [None]
    assert evicted is None, "block 3 was partly filled"
    other = pager.add_sequence()
    pager.append(other, 12)
    order = [(block.block_id, block.tokens) for block in pager.take_evicted()]
    assert order == [(2, (8, 9, 10, 11)), (1, (4, 5, 6, 7)), (5, (24, 25, 26, 27))]
    assert pager.take_evicted() == []
    with pytest.raises(ArenaFullError):
        pager.append(other, 8)
    pager.check_integrity()


def test_two_sequences_that_compute_the_same_end_with_the_same_blocks():
    pager = make_pager()
    seq_ids = [pager.add_sequence() for _ in range(2)]
    for seq_id in seq_ids:
        pager.append(seq_id, 14)
    pager.take_copies()
    for seq_id in seq_ids:
        pager.commit(seq_id, PROMPT, hashes(), 14)
        pager.check_integrity()
    a, b = seq_ids
    assert pager.blocks_of(b)[:3] == pager.blocks_of(a)[:3] and pager.num_used == 5
    assert pager.block_tables([b])[0].tolist() == pager.blocks_of(b)
    pager.free(a)
    pager.free(b)
    assert pager.num_idle == 4 and pager.num_free == 10


def test_a_running_sequence_keeps_its_blocks_where_nobody_uses_equal_ones():
    """Their numbers may be rounded otherwise, and when a step is read depends on the clock."""
    pager = make_pager()
    first, _ = start(pager, PROMPT)
    before = pager.blocks_of(first)
    pager.free(first)
    second = pager.add_sequence()
    pager.append(second, 14)
    pager.take_copies()
    own = pager.blocks_of(second)
    pager.commit(second, PROMPT, hashes(), 14)
    pager.check_integrity()
    assert pager.blocks_of(second) == own and not {*own} & {*before}
    assert found(pager, [*PROMPT[:12], 7]) == (12, tuple(own[:3]))
    assert pager.num_idle == 1, "the partly filled block stays"
    pager.free(second)
    pager.check_integrity()
    assert (pager.num_idle, pager.num_free) == (4, 10)


def test_a_prefix_is_refused_when_blocks_have_changed():
    pager = make_pager()
    a, _ = start(pager, PROMPT)
    prefix = pager.find_prefix(PROMPT, hashes())
    pager.truncate(a, 5)
    with pytest.raises(ArenaError, match="have changed since this prefix was found"):
        pager.add_sequence(prefix)
    assert pager.num_sequences == 1 and pager.add_sequence(Prefix(0, ())) == 1


def test_a_truncated_sequence_does_not_write_into_cached_blocks():
    pager = make_pager()
    a, _ = start(pager, PROMPT)
    pager.truncate(a, 6)
    pager.append(a, 1)
    assert pager.take_copies() == [(1, 3)]
    pager.commit(a, [*PROMPT[:6], 9], hashes(), 7)
    assert found(pager, [*PROMPT[:6], 9, 9])[0] == 7 and found(pager, PROMPT)[0] == 12
    pager.check_integrity()


def test_a_contiguous_arena_tells_what_it_gives_up():
    pager = make_pager(max_sequences=1, contiguous=True, record_evictions=True)
    a, _ = start(pager, PROMPT)
    pager.free(a)
    assert pager.take_evicted() == []
    start(pager, [*PROMPT[:6], 7])
    evicted = [(block.block_id, block.tokens) for block in pager.take_evicted()]
    assert evicted == [(1, tuple(PROMPT[4:8])), (2, tuple(PROMPT[8:12]))]


@pytest.mark.parametrize(("blocks", "most"), [(0, 1), (1, 4), (2, 4), (4, 16)])
def test_digests_of_blocks_that_are_not_there_are_not_made_to_look_for_them(blocks, most):
    pager, prompt = make_pager(), [*range(200, 290)]
    start(pager, prompt[: 4 * blocks] or [1])
    own = hashes()
    assert pager.find_prefix(prompt, own).num_tokens == 4 * blocks and len(own._digests) == most


def test_digests():
    tokens = [*range(9)]
    growing = hashes()
    assert len(growing.of(tokens, 7)) == 1 and growing.of(tokens, 9)[:1] == growing.of(tokens, 7)
    assert growing.of(tokens, 9) == hashes().of(tokens, 9) and len(growing.of(tokens, 8)) == 2
    others = [hashes().of([9, *tokens], 8), hashes(root_digest("x")).of(tokens, 8), growing.of(tokens, 8)]
    assert len({digest for digests in others for digest in digests}) == 6
    assert root_digest("a", "bc") != root_digest("ab", "c") and len(root_digest("\ud800")) == 16
