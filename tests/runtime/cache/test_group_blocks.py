"""Groups of layers under random use: what the next query of a sequence reads is there, in every group.

A slot of this arena holds what K and V of a token depend on: a hash of all tokens up to this one. So a wrong table, a
block that was given back too early, a prefix without its window or a lost copy shows.
"""

from random import Random

import pytest

from mlxr.compiler.artifact import LayerGroup
from mlxr.compiler.errors import ArenaError
from mlxr.compiler.formats import stores
from mlxr.runtime.cache import group_blocks
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.pager import Pager

ROOT = root_digest("test")
TAKEN_BACK = 3
CONTEXT = 60


def chain(tokens):
    """Of each token a hash of it and all before it."""
    values, value = [], 0
    for token in tokens:
        value = hash((value, token))
        values.append(value)
    return values


class Machine:
    """Sequences over three groups: of all tokens, of a window, and of all tokens again."""

    def __init__(self, rng, size, window, tile):
        self.rng = rng
        columns, most = -(-CONTEXT // size), 3
        self.each = -(-(window + tile + TAKEN_BACK) // size) + 3
        windowed = LayerGroup((1,), most * self.each + -(-40 // size), columns, window)
        whole = LayerGroup((2,), most * columns, columns)
        self.groups = (LayerGroup((0,), most * columns, columns), windowed, whole)
        self.pager = Pager(most * columns, size, columns, most, context=CONTEXT, others=self.groups[1:])
        self.memory = [{} for _ in self.groups]
        self.starts = {}  # id -> tokens before its newest step
        self.sequences = {}  # id -> [tokens, hashes, number of them that are computed]

    def pick(self):
        return self.rng.choice(sorted(self.sequences))

    def act(self):
        actions = [self.begin, *([self.step] * 5 + [self.fork, self.truncate, self.free]) * bool(self.sequences)]
        self.rng.choice(actions)()

    def values(self, seq_id, group, positions):
        table, size = self.pager.block_tables([seq_id], group)[0], self.pager.block_size
        return [self.memory[group].get(table[i // size] * size + i % size) for i in positions]

    def begin(self):
        if not self.pager.can_add_sequence():
            return
        prompt = [1 + (self.rng.random() < 0.1) for _ in range(self.rng.randint(1, 40))]
        hashes = BlockHashes(ROOT, self.pager.block_size)
        prefix = self.pager.find_prefix(prompt, hashes)
        seq_id = self.pager.add_sequence(prefix)
        self.sequences[seq_id] = [prompt, hashes, prefix.num_tokens]
        self.starts[seq_id] = prefix.num_tokens

    def step(self):
        commits, one_each = self.rng.random() < 0.8, self.rng.random() < 0.4
        seq_ids = self.rng.sample(sorted(self.sequences), self.rng.randint(1, len(self.sequences)))
        growths = []
        for seq_id in seq_ids:
            tokens, _, computed = self.sequences[seq_id]
            if computed == len(tokens) < CONTEXT:
                tokens.append(self.rng.randint(1, 2))
            count = 1 if one_each else self.rng.randint(1, 13)
            if count := min(count, len(tokens) - computed):
                growths.append((seq_id, count))
        if not growths:
            return
        assert self.pager.can_append_all(growths), "there are blocks for all sequences"
        lengths = [self.pager.length(seq_id) for seq_id, _ in growths]
        if any(count > 1 for _, count in growths) or (
            self.pager.append_to_each([seq_id for seq_id, _ in growths], lengths) is None
        ):
            self.pager.append_all(growths)
        for group, memory in enumerate(self.memory):
            size, old = self.pager.block_size, dict(memory)
            for source, target in self.pager.take_copies_of(group) if group else self.pager.take_copies():
                for i in range(size):
                    memory[target * size + i] = old.get(source * size + i)
            for seq_id, count in growths:
                tokens, _, start = self.sequences[seq_id]
                table = self.pager.block_tables([seq_id], group)[0]
                for i in range(start, start + count):
                    memory[table[i // size] * size + i % size] = chain(tokens)[i]
        for seq_id, count in growths:
            sequence = self.sequences[seq_id]
            self.starts[seq_id] = sequence[2]
            sequence[2] += count
            if commits:
                self.pager.commit(seq_id, sequence[0], sequence[1], sequence[2])

    def fork(self):
        seq_id = self.pick()
        if self.pager.can_fork(seq_id):
            tokens, _, computed = self.sequences[seq_id]
            fork_id = self.pager.fork(seq_id)
            self.starts[fork_id] = computed
            self.sequences[fork_id] = [
                [*tokens[:computed], 1],
                BlockHashes(ROOT, self.pager.block_size),
                computed,
            ]

    def truncate(self):
        seq_id = self.pick()
        tokens, _, computed = self.sequences[seq_id]
        back = self.rng.choice([1, 2, 3, 9, 99])
        length = max(0, computed - back)
        if self.pager.nearest(seq_id, length) < length:
            assert length < self.starts[seq_id], "a step may be undone"
            with pytest.raises(ArenaError, match="cannot go back"):
                self.pager.truncate(seq_id, length)
            return
        self.pager.truncate(seq_id, length)
        self.sequences[seq_id] = [[*tokens[:length], 2], BlockHashes(ROOT, self.pager.block_size), length]

    def free(self):
        seq_id = self.pick()
        tokens, hashes, computed = self.sequences.pop(seq_id)
        self.pager.free(seq_id, tokens, hashes if self.rng.random() < 0.7 else None, computed)

    def check(self):
        self.pager.check_integrity()
        for seq_id, (tokens, _, computed) in self.sequences.items():
            for number, group in enumerate(self.groups):
                seen = range(group.first_read(computed), computed)
                assert self.values(seq_id, number, seen) == chain(tokens)[seen.start : computed]
        if not self.sequences:
            assert [group.num_used for group in self.pager.others] == [0, 0]


@pytest.mark.parametrize("seed", range(12))
def test_the_next_query_finds_what_it_reads(seed, monkeypatch):
    rng = Random(seed)
    size, window, tile = (4, 2, 1)[seed % 3], rng.randint(1, 9), rng.choice([1, 3, 4])
    monkeypatch.setattr(stores, "MOST_TILE_KEYS", tile)
    monkeypatch.setattr(group_blocks, "MOST_TAKEN_BACK", TAKEN_BACK)
    machine = Machine(rng, size, window, tile)
    for _ in range(150):
        machine.act()
        machine.check()


def test_a_running_sequence_keeps_its_blocks_where_nobody_uses_equal_ones():
    pager, tokens, seen = Pager(10, 4, 5, 2, others=(LayerGroup((1,), 10, 5),)), [*range(12)], []
    for _ in range(2):
        seq_id = pager.add_sequence()
        pager.append(seq_id, 12)
        pager.take_copies()
        seen.append(pager.block_tables([seq_id], 1).tolist())
        pager.commit(seq_id, tokens, BlockHashes(ROOT, 4), 12)
        pager.check_integrity()
        assert pager.block_tables([seq_id], 1).tolist() == seen[-1]
        pager.free(seq_id)
    assert not {*seen[0][0][:3]} & {*seen[1][0][:3]}
