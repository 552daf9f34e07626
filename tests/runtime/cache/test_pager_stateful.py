"""The pager under random use, against an arena simulated token by token.

After every action, as if the step ran now, each sequence must read back its own tokens through its block table.
"""

import copy

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlxr.compiler.errors import ArenaError, ArenaFullError
from mlxr.runtime.cache.pager import Pager
from mlxr_tests.few import examples


def copy_blocks(memory, copies, block_size):
    """All copies at once, as one launch would do them."""
    old = list(memory)
    for source, destination in copies:
        memory[destination * block_size : (destination + 1) * block_size] = old[
            source * block_size : (source + 1) * block_size
        ]


class PagerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.tokens = {}  # sequence id -> the tokens it must read back
        self.writes = {}  # (sequence id, position) -> slot, of the coming step
        self.next_token = 1

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.sampled_from([4, 2, 8, 1]),
        spare=st.integers(0, 3),
        max_sequences=st.integers(2, 5),
        prompt=st.integers(1, 7),
    )
    def make(self, num_blocks, block_size, spare, max_sequences, prompt):
        context = max(1, 4 * block_size - spare)
        self.pager = Pager(num_blocks, block_size, 4, max_sequences, context=context)
        self.memory = [0] * (num_blocks * block_size)
        self.add(prompt)  # here too, because an example may go without any of the rules

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.tokens)))

    @rule(prompt=st.integers(0, 7))
    def add(self, prompt):
        if len(self.tokens) < self.pager.max_sequences:
            seq_id = self.pager.add_sequence()
            self.tokens[seq_id] = []
            if self.pager.can_append_all([(seq_id, prompt)]):
                self.grow([(seq_id, prompt)])
        else:
            assert not self.pager.can_add_sequence()
            with pytest.raises(ArenaError, match="sequences; free one"):
                self.pager.add_sequence()

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def append(self, data):
        seq_ids = data.draw(st.lists(st.sampled_from(sorted(self.tokens)), min_size=1, max_size=3, unique=True))
        growths = [(seq_id, data.draw(st.sampled_from([1, 2, 3, 1, 5, 9]))) for seq_id in seq_ids]
        possible = self.pager.can_append_all(growths)
        assert possible == self.fits_one_by_one(growths)
        if not possible:
            before = copy.deepcopy(self.pager)
            too_long = any(len(self.tokens[s]) + n > self.pager.context for s, n in growths)
            with pytest.raises(ArenaError) as error:
                self.pager.append_all(growths)
            assert isinstance(error.value, ArenaFullError) != too_long
            assert vars(before._pool) == vars(self.pager._pool)
            assert (
                before._sequences == self.pager._sequences and before._copies.source_of == self.pager._copies.source_of
            )
            return
        self.grow(growths)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), children_first=st.booleans())
    def branch(self, data, children_first):
        """A fork with both sides growing: where copy-on-write happens."""
        self.step()
        parent = self.pick(data)
        if self.pager.can_fork(parent):
            child = self.pager.fork(parent)
            self.tokens[child] = list(self.tokens[parent])
            for seq_id in (child, parent) if children_first else (parent, child):
                if self.pager.can_append_all([(seq_id, 1)]):
                    self.grow([(seq_id, 1)])

    def grow(self, growths):
        for (seq_id, count), slots in zip(growths, self.pager.append_all(growths), strict=True):
            assert len(slots) == count
            for slot in slots:
                self.writes[seq_id, len(self.tokens[seq_id])] = slot
                self.tokens[seq_id].append(self.next_token)
                self.next_token += 1

    def fits_one_by_one(self, growths):
        trial = copy.deepcopy(self.pager)
        try:
            for seq_id, count in growths:
                trial.append(seq_id, count)
        except ArenaError:
            return False
        return True

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), step_first=st.booleans())
    def fork(self, data, step_first):
        seq_id = self.pick(data)
        if step_first:
            self.step()
        if self.pager.can_fork(seq_id):
            self.tokens[self.pager.fork(seq_id)] = list(self.tokens[seq_id])
            return
        full = len(self.tokens) == self.pager.max_sequences
        assert full or self.writes or self.pager._copies.source_of, "nothing is in the way of a fork"
        with pytest.raises(ArenaError, match="free one|are in its blocks" if full else "are in its blocks"):
            self.pager.fork(seq_id)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def truncate(self, data):
        seq_id = self.pick(data)
        length = max(0, len(self.tokens[seq_id]) - data.draw(st.sampled_from([1, 2, 3, 4, 6, 99])))
        self.pager.truncate(seq_id, length)
        del self.tokens[seq_id][length:]
        self.writes = {at: slot for at, slot in self.writes.items() if at[0] != seq_id or at[1] < length}

    @precondition(lambda self: len(self.tokens) == self.pager.max_sequences)
    @rule(data=st.data())
    def free(self, data):
        seq_id = self.pick(data)
        self.pager.free(seq_id)
        del self.tokens[seq_id]
        self.writes = {at: slot for at, slot in self.writes.items() if at[0] != seq_id}

    @rule()
    def step(self):
        self.run_step(self.pager, self.memory)
        self.writes = {}
        assert all(self.pager.can_fork(s) == self.pager.can_add_sequence() for s in self.tokens)

    def run_step(self, pager, memory):
        copy_blocks(memory, pager.take_copies(), pager.block_size)
        for (seq_id, position), slot in self.writes.items():
            memory[slot] = self.tokens[seq_id][position]

    @invariant()
    def every_sequence_reads_its_own_tokens(self):
        if self.tokens:
            self.pager.block_tables(
                list(self.tokens)
            )  # kept for the next step: the next action must drop what it changes
        self.pager.check_integrity()
        assert len(set(self.writes.values())) == len(self.writes), "two tokens of one step in one slot"
        pager, memory = copy.deepcopy(self.pager), list(self.memory)
        self.run_step(pager, memory)
        pager.check_integrity()
        size = pager.block_size
        for seq_id, tokens in self.tokens.items():
            table = pager.block_table(seq_id)
            assert pager.length(seq_id) == len(tokens)
            assert [memory[table[i // size] * size + i % size] for i in range(len(tokens))] == tokens

    def teardown(self):
        if not hasattr(self, "pager"):
            return
        for seq_id in self.tokens:
            self.pager.free(seq_id)
        assert self.pager.take_copies() == [], "a copy nobody reads"
        assert self.pager.num_free_blocks == self.pager.num_blocks


class ContiguousMachine(PagerMachine):
    """One sequence in a contiguous arena: the same rules, and always the identity table."""

    @initialize(num_blocks=st.integers(1, 9), block_size=st.sampled_from([4, 1, 2]), spare=st.integers(0, 3))
    def make(self, num_blocks, block_size, spare):
        context = max(1, 4 * block_size - spare)
        self.pager = Pager(num_blocks, block_size, 4, 1, contiguous=True, context=context)
        self.memory = [0] * (num_blocks * block_size)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), step_first=st.booleans())
    def fork(self, data, step_first):
        with pytest.raises(ArenaError, match="cannot fork"):
            self.pager.fork(self.pick(data))

    def branch(self):
        """Not in a contiguous arena."""

    @rule()
    def step(self):
        self.run_step(self.pager, self.memory)
        self.writes = {}
        assert not any(self.pager.can_fork(s) for s in self.tokens)

    @invariant()
    def the_table_is_the_identity(self):
        for seq_id in self.tokens:
            table = self.pager.block_table(seq_id)
            assert table == tuple(range(len(table)))


_SETTINGS = settings(
    max_examples=examples(50, 15),
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

TestPager = PagerMachine.TestCase
TestPager.settings = _SETTINGS
TestContiguousPager = ContiguousMachine.TestCase
TestContiguousPager.settings = settings(_SETTINGS, max_examples=examples(40, 12))
