"""The prefix cache under random use, against an arena simulated token by token.

A slot of this arena holds what K and V of a token depend on: the root, and all tokens up to this one. So a sequence
reads the right content exactly if each slot of its table has the root and its own tokens up to there.

What must be found: all that sequences in use have committed, and what others left in blocks that nobody took since.
"""

from collections import Counter
from itertools import chain

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlxr.compiler.errors import ArenaError
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.cache.prefix_index import num_common
from mlxr_tests.few import examples

ROOTS = [root_digest("model", salt) for salt in ("", "salt")]
PROMPTS = st.lists(st.sampled_from([1, 2]), max_size=12).map(lambda tail: [1] * (12 - len(tail)) + tail)


class Request:
    def __init__(self, root, tokens, block_size):
        self.root, self.tokens = root, tokens
        self.hashes = BlockHashes(root, block_size)
        self.committed = 0

    def contents(self, size, length):
        """What its blocks hold of the first tokens: for each block, the root and all tokens up to its end."""
        return [(self.root, tuple(self.tokens[: min(length, i + size)])) for i in range(0, length, size)]


class PrefixCacheMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(3, 12), block_size=st.sampled_from([4, 2, 1]), max_sequences=st.integers(1, 4))
    def make(self, num_blocks, block_size, max_sequences, contiguous=False):
        options = {"contiguous": contiguous, "record_evictions": True}
        self.pager = Pager(num_blocks, block_size, 40 // block_size, max_sequences, **options)
        self.size, self.memory = block_size, [None] * (num_blocks * block_size)
        self.requests = {}  # by sequence id
        self.writes = {}  # (sequence id, position) -> slot, of the coming step
        self.left = {}  # block -> what a freed or truncated sequence committed in it
        self.clock, self.last_use = 0, [0] * num_blocks

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.requests)))

    @rule(
        prompt=PROMPTS,
        root=st.sampled_from([0, 0, 0, 1]),
        whole=st.booleans(),
        cut=st.integers(0, 9),
        then=st.sets(st.sampled_from(["commit", "free"])),
    )
    def start(self, prompt, root, whole, cut, then):
        if self.pager.contiguous and self.requests:
            return
        request = Request(ROOTS[root], prompt[: len(prompt) - cut], self.size)
        prefix = self.pager.find_prefix(request.tokens, request.hashes, whole_blocks=whole)
        count = prefix.num_tokens
        assert count < len(request.tokens) and not (whole and count % self.size)
        assert len(prefix.blocks) == -(-count // self.size)
        assert self.content(prefix.blocks, count) == self.right_content(request, count), "a hit is what it should be"
        if not self.writes:
            least = self.must_find(request.root, request.tokens[:-1])
            assert count >= (least - least % self.size if whole else least)
        if self.pager.can_add_sequence():
            has_room = self.pager.blocks_to_begin(prefix, len(request.tokens)) <= self.pager.num_free
            seq_id = self.pager.add_sequence(prefix)
            if self.pager.contiguous:
                self.left.clear()
            rest = request.tokens[count:]
            self.requests[seq_id] = Request(request.root, request.tokens[:count], self.size)
            assert self.pager.can_append_all([(seq_id, len(rest))]) == (has_room and bool(rest))
            if has_room and rest:
                self.grow([(seq_id, rest)])
            if "commit" in then:
                self.step()
                self.commit_to(seq_id, len(self.requests[seq_id].tokens))
            if "free" in then:
                self.end(seq_id)

    def must_find(self, root, tokens):
        contents = {content for content in self.left.values() if content[0] == root}
        for request in self.requests.values():
            if request.root == root:
                contents.update(request.contents(self.size, request.committed))
        known = 0
        while known + self.size <= len(tokens) and (root, tuple(tokens[: known + self.size])) in contents:
            known += self.size
        here = [upto for _, upto in contents if known < len(upto) <= known + self.size]
        return max([known, *(num_common(upto, tokens) for upto in here)])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def append(self, data):
        seq_ids = data.draw(st.lists(st.sampled_from(sorted(self.requests)), min_size=1, max_size=3, unique=True))
        growths = [(s, data.draw(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=5))) for s in seq_ids]
        if self.pager.can_append_all([(seq_id, len(tokens)) for seq_id, tokens in growths]):
            self.grow(growths)

    def grow(self, growths):
        pool = self.pager._pool
        tables = {seq_id: self.pager.blocks_of(seq_id) for seq_id, _ in growths}
        was_idle = set(pool.idle)
        starts = {seq_id: self.pager.length(seq_id) for seq_id, _ in growths}
        parts = self.pager.append_all([(seq_id, len(tokens)) for seq_id, tokens in growths])
        for (seq_id, tokens), slots in zip(growths, parts, strict=True):
            for token, slot in zip(tokens, slots, strict=True):
                self.writes[seq_id, len(self.requests[seq_id].tokens)] = slot
                self.requests[seq_id].tokens.append(token)
            new = set(self.pager.blocks_of(seq_id)) - set(tables[seq_id])
            for block in new:
                self.left.pop(block, None)
            written = slots[0] // self.size
            if len(self.left.get(written, (0, ()))[1]) > starts[seq_id]:  # taken over: nobody else needs it
                assert not pool.free_blocks and not pool.idle
                del self.left[written]
        for evicted in was_idle - set(pool.idle):
            assert all(self.last_use[evicted] <= self.last_use[block] for block in pool.idle), "not the oldest one"

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), step_first=st.booleans())
    def commit(self, data, step_first):
        if step_first:
            self.step()
        seq_id = self.pick(data)
        self.commit_to(seq_id, data.draw(st.integers(0, len(self.requests[seq_id].tokens))))

    def commit_to(self, seq_id, length):
        request = self.requests[seq_id]
        try:
            self.pager.commit(seq_id, request.tokens, request.hashes, length)
        except ArenaError:
            assert self.writes, "all is settled"
        else:
            request.committed = max(request.committed, length)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), less=st.sampled_from([1, 2, 5, 99]))
    def truncate(self, data, less):
        seq_id = self.pick(data)
        length = max(0, len(self.requests[seq_id].tokens) - less)
        if not self.pager.contiguous:
            self.leave(seq_id, self.requests[seq_id].committed // self.size * self.size)
        self.pager.truncate(seq_id, length)
        new = Request(self.requests[seq_id].root, self.requests[seq_id].tokens[:length], self.size)
        committed = self.requests[seq_id].committed
        new.committed = committed if committed <= length else length - length % self.size
        self.requests[seq_id] = new
        self.writes = {at: slot for at, slot in self.writes.items() if at[0] != seq_id or at[1] < length}

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), commits=st.booleans())
    def free(self, data, commits):
        seq_id = self.pick(data)
        if commits:
            self.step()
            self.commit_to(seq_id, data.draw(st.integers(0, len(self.requests[seq_id].tokens))))
        self.end(seq_id)

    def end(self, seq_id):
        """Frees a sequence, perhaps in the middle of a step: its last block may not be copied yet."""
        committed = self.requests[seq_id].committed
        self.note_use()
        last = self.pager.blocks_of(seq_id)[committed // self.size :]
        is_copied = not last or last[0] not in self.pager._copies.source_of
        self.leave(seq_id, committed if is_copied else committed - committed % self.size)
        self.pager.free(seq_id, self.requests[seq_id].tokens, self.requests[seq_id].hashes, committed)
        del self.requests[seq_id]
        self.writes = {at: slot for at, slot in self.writes.items() if at[0] != seq_id}

    def leave(self, seq_id, length):
        """Notes what a sequence leaves behind, which must be found until the blocks are taken."""
        contents = self.requests[seq_id].contents(self.size, length)
        for block, content in zip(self.pager.blocks_of(seq_id), contents, strict=False):
            if len(self.left.get(block, (0, ()))[1]) < len(content[1]):
                self.left[block] = content

    @rule()
    def step(self):
        for block in self.pager.take_evicted():
            root, upto = self.memory[(block.block_id + 1) * self.size - 1]
            digests = [root, *BlockHashes(root, self.size).of(upto, len(upto))]
            assert [block.parent, block.digest] == digests[-2:] and block.tokens == upto[-self.size :]
        self.note_use()
        copies = self.pager.take_copies()
        self.memory = self.after_step(copies)
        self.writes = {}

    def after_step(self, copies):
        memory, size = list(self.memory), self.size
        for source, destination in copies:
            memory[destination * size : (destination + 1) * size] = self.memory[source * size : (source + 1) * size]
        for (seq_id, position), slot in self.writes.items():
            memory[slot] = self.right_content(self.requests[seq_id], position + 1)[-1]
        return memory

    def right_content(self, request, length):
        return [(request.root, tuple(request.tokens[: i + 1])) for i in range(length)]

    def content(self, blocks, length, memory=None):
        memory = self.memory if memory is None else memory
        return [memory[blocks[i // self.size] * self.size + i % self.size] for i in range(length)]

    @invariant()
    def every_sequence_reads_its_own_tokens(self):
        pager = self.pager
        pager.check_integrity()
        assert pager.num_free + pager.num_used == pager.num_blocks
        uses = Counter(block for seq_id in pager.sequence_ids for block in pager.blocks_of(seq_id))
        states, pinned = pager.block_states(), set(pager._copies.source_of.values())
        in_use = ["s" if uses[i] > 1 else "u" if uses[i] or i in pinned else "" for i in range(pager.num_blocks)]
        assert [state if state in "us" else "" for state in states] == in_use
        assert states.count("c") == pager.num_idle
        memory = self.after_step([(source, destination) for destination, source in pager._copies.source_of.items()])
        for seq_id, request in self.requests.items():
            blocks, length = pager.blocks_of(seq_id), len(request.tokens)
            assert pager.length(seq_id) == length
            assert pager.block_tables([seq_id])[0].tolist()[: len(blocks)] == blocks
            assert self.content(blocks, length, memory) == self.right_content(request, length)
        self.note_use()

    def note_use(self):
        self.clock += 1
        used = [self.pager.blocks_of(seq_id) for seq_id in self.requests]
        for block in [*chain.from_iterable(used), *self.pager._copies.source_of.values()]:
            self.last_use[block] = self.clock

    def teardown(self):
        if hasattr(self, "pager"):
            for seq_id in self.requests:
                self.pager.free(seq_id)
            assert self.pager.take_copies() == [] and self.pager.num_free == self.pager.num_blocks
            self.pager.check_integrity()


class ContiguousMachine(PrefixCacheMachine):
    """One sequence in a contiguous arena, which leaves its tokens to the next one."""

    @initialize(num_blocks=st.integers(3, 9), block_size=st.sampled_from([4, 2, 1]))
    def make(self, num_blocks, block_size):
        super().make(num_blocks, block_size, 1, contiguous=True)


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(
    max_examples=examples(60, 20),
    stateful_step_count=40,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestContiguous = ContiguousMachine.TestCase
TestContiguous.settings = settings(TestPrefixCache.settings, max_examples=examples(50, 16))
