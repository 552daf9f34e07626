"""The states of sequences under random use, against a store whose slots hold the tokens that led to them.

A step reads the state of exactly the tokens before it, whatever was forked, undone, freed, found or given up before. A
simple model says which of them must be there: the last one, those that may be undone, and what there is room for.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mlxr.compiler.errors import ArenaError
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.cache.sequence_states import SequenceStates
from mlxr.runtime.hosts.batch import Batch, BatchRequest, DecodeRequests

ROOTS = [root_digest("model", salt) for salt in ("", "salt")]
PROMPTS = st.lists(st.sampled_from([1, 2]), max_size=14).map(lambda tail: [1] * (14 - len(tail)) + tail)


class Sequence:
    def __init__(self, root, tokens, block_size):
        self.root, self.tokens, self.hashes = root, tokens, BlockHashes(root, block_size)
        self.undo = self.certain = 0


class StatesMachine(RuleBasedStateMachine):
    @initialize(
        max_sequences=st.integers(1, 4),
        spare=st.sampled_from([0, 1, 3, 30]),
        block_size=st.sampled_from([4, 2, 1]),
        every=st.sampled_from([0, 3, 8]),
    )
    def make(self, max_sequences, spare, block_size, every):
        self.states = SequenceStates(2 * max_sequences + spare, max_sequences, block_size, every)
        self.pager = Pager(200, block_size, 60 // block_size, max_sequences, states=self.states)
        self.size, self.slots = block_size, [None] * (2 * max_sequences + spare)
        self.sequences = {}

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.sequences)))

    @rule(prompt=PROMPTS, cut=st.integers(0, 12), root=st.sampled_from([0, 0, 0, 1]))
    def start(self, prompt, cut, root):
        prompt = prompt[: len(prompt) - cut]
        hashes = BlockHashes(ROOTS[root], self.size)
        prefix = self.pager.find_prefix(prompt, hashes)
        assert prefix.num_tokens <= prefix.num_known < len(prompt)
        assert len(prefix.blocks) == -(-prefix.num_tokens // self.size)
        if not self.pager.can_add_sequence():
            return
        seq_id = self.pager.add_sequence(prefix)
        self.states.want(seq_id, len(prompt), prefix.num_known)
        self.sequences[seq_id] = sequence = Sequence(ROOTS[root], prompt[: prefix.num_tokens], self.size)
        sequence.certain = prefix.num_tokens
        self.grow({seq_id: prompt[prefix.num_tokens :]}, 0)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), undo=st.integers(0, 3))
    def step(self, data, undo):
        seq_ids = data.draw(st.lists(st.sampled_from(sorted(self.sequences)), min_size=1, unique=True))
        tokens = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=data.draw(st.sampled_from([1, 5])))
        self.grow(
            {seq_id: data.draw(tokens) for seq_id in seq_ids}, min(undo, max(self.states.room, 0) // len(seq_ids))
        )

    def grow(self, tokens, undo):
        tokens = {i: new[: 50 - len(self.sequences[i].tokens)] for i, new in tokens.items()}
        tokens = {i: new[: self.states.cut(i, len(new))] for i, new in tokens.items() if new}
        if not tokens:
            return
        starts = {i: len(self.sequences[i].tokens) for i in tokens}
        requests = [BatchRequest(i, new, starts[i], "last", undo) for i, new in tokens.items()]
        if not undo and all(len(new) == 1 for new in tokens.values()):
            requests = DecodeRequests([*tokens], [new[0] for new in tokens.values()], [*starts.values()])
        batch = Batch.build(requests, self.pager, 4)
        self.pager.take_copies()
        before = list(self.slots)
        written = set()
        for row, (seq_id, new) in zip(batch.state_table.tolist(), tokens.items(), strict=True):
            sequence = self.sequences[seq_id]
            held = None if row[0] < 0 else before[row[0]]
            assert held == ((sequence.root, tuple(sequence.tokens)) if sequence.tokens else None), "reads its own state"
            sequence.tokens += new
            sequence.undo = min(undo, len(new) - 1)
            for column, slot in enumerate(row[1:], 1):
                if slot >= 0:
                    assert column <= len(new) and slot not in written
                    assert column <= max(self.size, undo) + 1, "the table is narrow"
                    written.add(slot)
                    length = len(sequence.tokens) - column + 1
                    self.slots[slot] = sequence.root, tuple(sequence.tokens[:length])
        assert not written & {row[0] for row in batch.state_table.tolist()}

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), undo=st.booleans(), keep=st.booleans(), late=st.sampled_from([0, 0, 1, 2, 5]))
    def settle(self, data, undo, keep, late):
        """What the engine does after a step: takes guesses back, and says what is certain."""
        seq_id = self.pick(data)
        sequence = self.sequences[seq_id]
        if undo and sequence.undo:
            self.cut(seq_id, len(sequence.tokens) - data.draw(st.integers(0, sequence.undo)))
        sequence.certain = max(sequence.certain, len(sequence.tokens) - late)
        self.pager.commit(seq_id, sequence.tokens, sequence.hashes, sequence.certain)
        self.states.commit(seq_id, sequence.tokens, sequence.hashes, sequence.certain)
        if keep:
            self.states.keep(seq_id)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), length=st.integers(0, 20))
    def truncate(self, data, length):
        seq_id = self.pick(data)
        length = min(length, len(self.sequences[seq_id].tokens))
        nearest = self.pager.nearest(seq_id, length)
        if nearest < length:
            try:
                self.pager.truncate(seq_id, length)
            except ArenaError as error:
                assert f"cannot go back to {length} tokens" in str(error)
            else:
                raise AssertionError("there is no such state")
        self.cut(seq_id, nearest)

    def cut(self, seq_id, length):
        sequence = self.sequences[seq_id]
        self.pager.truncate(seq_id, length)
        sequence.tokens = sequence.tokens[:length]
        sequence.hashes = BlockHashes(sequence.root, self.size)
        sequence.undo, sequence.certain = 0, min(sequence.certain, length)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def fork(self, data):
        seq_id = self.pick(data)
        if self.pager.can_fork(seq_id):
            sequence = self.sequences[seq_id]
            sequence.certain = len(sequence.tokens)
            fork = self.sequences[self.pager.fork(seq_id)] = Sequence(sequence.root, list(sequence.tokens), self.size)
            fork.certain = sequence.certain

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def fail(self, data):
        """Of steps that are not certain, one has failed, and written anything."""
        seq_id = self.pick(data)
        sequence = self.sequences.pop(seq_id)
        for length, slot in self.states._sequences[seq_id].slots.items():
            if length > sequence.certain:
                self.slots[slot] = "anything"
        self.pager.truncate(seq_id, 0)
        self.pager.free(seq_id)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), is_certain=st.booleans())
    def free(self, data, is_certain):
        seq_id = self.pick(data)
        sequence = self.sequences.pop(seq_id)
        if not is_certain:
            self.pager.truncate(seq_id, 0)
            self.pager.free(seq_id)
            return
        tokens, certain = sequence.tokens, sequence.certain
        kept = self.pager.states.slots
        self.pager.free(seq_id, tokens, sequence.hashes, certain)
        if certain and certain == len(tokens):
            assert kept.find(tokens, sequence.hashes, certain)[0] == certain, "the end of a sequence is a snapshot"

    @invariant()
    def snapshots_hold_what_they_should(self):
        if not hasattr(self, "pager"):
            return
        self.pager.check_integrity()
        for slot, snapshot in self.states.slots.snapshots.items():
            root, tokens = self.slots[slot]
            hashes = BlockHashes(root, self.size)
            assert self.states.slots.find(tokens, hashes, len(tokens)) == (len(tokens), slot)
            assert snapshot.rest == tokens[len(tokens) - len(snapshot.rest) :]

    def teardown(self):
        if hasattr(self, "pager"):
            for seq_id in self.sequences:
                self.pager.free(seq_id)
            assert self.states.slots.num_free == self.states.slots.num_slots and not self.states.room < 0


@pytest.mark.parametrize("examples", [8, pytest.param(1000, marks=pytest.mark.long)])
def test_random_sequences(examples):
    run_state_machine_as_test(
        StatesMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
