"""Where snapshots of states are taken: one sequence, whose tokens are computed one after the other."""

from dataclasses import replace

from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.cache.prefix_index import CachedBlock, CachedState
from mlxr.runtime.cache.sequence_states import SequenceStates
from mlxr.runtime.cache.state_slots import StateSlots
from mlxr.runtime.hosts.batch import Batch, BatchRequest, DecodeRequests

ROOT, SIZE = root_digest("model", ""), 4


def computed(prompt: list[int], answer: list[int], every: int) -> Pager:
    """The pager after a prompt, in steps that end where snapshots are wanted, and an answer, token by token."""
    states = SequenceStates(20, 1, SIZE, every)
    pager = Pager(50, SIZE, 20, 1, states=states)
    hashes, tokens, start = BlockHashes(ROOT, SIZE), prompt + answer, 0
    seq_id = pager.add_sequence()
    states.want(seq_id, len(prompt))
    while start < len(tokens):
        count = states.cut(seq_id, len(prompt) - start) if start < len(prompt) else 1
        new = tokens[start : start + count]
        in_prompt = start < len(prompt)
        requests = [BatchRequest(seq_id, new, start)] if in_prompt else DecodeRequests([seq_id], new, [start])
        Batch.build(requests, pager, SIZE)
        pager.take_copies()
        start += count
        pager.commit(seq_id, tokens, hashes, start)
        states.commit(seq_id, tokens, hashes, start)
    states.check_integrity({seq_id: len(tokens)})
    return pager


def known(pager: Pager, tokens: list[int]) -> int:
    """The tokens of a prompt after which there is a state: fewer than all, since the last one's logits are wanted."""
    return pager.find_prefix(tokens, BlockHashes(ROOT, SIZE)).num_tokens


def test_a_prompt_is_found_up_to_the_last_full_block_before_its_last_token() -> None:
    for length, start in ((8, 4), (9, 8), (11, 8), (12, 8)):
        prompt = list(range(length))
        pager = computed(prompt, [], 0)
        assert known(pager, prompt) == start
        assert known(pager, [*prompt, 1, 2]) == length


def test_answers_have_a_snapshot_every_so_many_tokens() -> None:
    tokens = list(range(40))
    pager = computed(tokens[:6], tokens[6:], 16)
    for length, start in ((40, 32), (33, 32), (32, 16), (20, 16), (16, 6), (7, 6), (6, 4)):
        assert known(pager, tokens[:length]) == start


def test_tokens_that_may_be_undone_come_before_snapshots() -> None:
    states = SequenceStates(4, 1, SIZE, SIZE)
    states.add(0)
    for undo in (0, 0, 2):
        states.step([0], [SIZE], [undo])
    states.check_integrity({0: 3 * SIZE})
    states.truncate(0, 3 * SIZE - 2)


def test_a_state_that_is_kept_is_found() -> None:
    """A sequence that must wait goes on where it was."""
    tokens = list(range(12))
    pager = computed(tokens[:6], tokens[6:9], 0)
    assert pager.states is not None and known(pager, tokens) == 6
    pager.states.keep(0)
    pager.states.commit(0, tokens[:9], BlockHashes(ROOT, SIZE), 9)
    assert known(pager, tokens) == 9


def test_a_state_within_the_first_block_goes_to_the_tiers() -> None:
    assert [item.slot for item in computed([1, 2, 3], [], 0).cached() if isinstance(item, CachedState)] == [0]


def test_a_restored_state_can_be_found() -> None:
    states, tokens, hashes = SequenceStates(4, 1, SIZE), list(range(8)), BlockHashes(ROOT, SIZE)
    states.add(0)
    slot = states.restore(0, 8)
    states.commit(0, tokens, hashes, 8)
    assert states.slots.find(tokens, hashes, 8) == (8, slot)


def test_the_states_of_a_block_end_within_it_or_with_it() -> None:
    slots, tokens, hashes = StateSlots(5), list(range(12)), BlockHashes(ROOT, SIZE)
    for length in (3, 4, 6, 8, 9):
        slots.keep(slots.take(), tokens, hashes, length)
    digests = hashes.of(tokens, 12)
    block = CachedBlock(0, digests[1], digests[0], tuple(tokens[4:8]))
    assert sorted(slot for slot, _ in slots.ending_in(block)) == [2, 3]
    assert [slot for slot, _ in slots.ending_in(replace(block, tokens=(4, 9, 9, 9), digest=b""))] == []


def test_the_oldest_snapshot_is_given_up_first() -> None:
    slots, tokens, hashes = StateSlots(3), list(range(12)), BlockHashes(ROOT, SIZE)
    for length in (4, 8, 12):
        slots.keep(slot := slots.take(), tokens, hashes, length)
        slots.release(slot)
    slots.take()
    assert [slots.find(tokens, hashes, most)[0] for most in (12, 11, 7)] == [12, 8, 0]
