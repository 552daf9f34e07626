"""What a head reads before it guesses: all of its text, in slots that other texts share, and nothing twice."""

import random
import time
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.speculation.own_head import OwnHead
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.engine.speculation.text import Text
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.host import Host
from mlxr_tests.hash_host import VOCAB, HashEngine


def after(following: Sequence[int]) -> int:
    """What the head guesses after tokens, of which it has an entry for each that has one before it."""
    return zlib.crc32(bytes(following)) % VOCAB


class HashHead:
    """A head without a model: its entries are the tokens that it read, in the slots of the engine's arena."""

    builds_late = pipelines = False
    clock = staticmethod(time.perf_counter)
    chain = Host.chain

    def __init__(self, engine: HashEngine) -> None:
        plan, size = engine.host.plan, engine.host.size
        self.plan = SimpleNamespace(max_tokens=plan.max_tokens, max_rows=4, query_tile=4, output_width=VOCAB)
        self.size = size
        one_layer = SimpleNamespace(group_of=lambda layer: 0, store=lambda name: SimpleNamespace(owners=[0]))
        self.arena = SimpleNamespace(geometry=one_layer)
        self.entries, self.read_tokens = np.zeros(len(engine.host.slots), np.uint8), 0
        self.copy = engine.host.copy_blocks
        engine.host.copy_blocks = self.copy_blocks  # type: ignore[method-assign]  # of one arena

    def copy_blocks(self, copies: Sequence[tuple[int, int]], group: int = 0) -> None:
        self.copy(copies, group)
        blocks = self.entries.reshape(-1, self.size)
        for source, target in copies:
            blocks[target] = blocks[source]

    def step(self, batch: Batch) -> Any:
        slots = batch.slots.tolist()
        assert len({*slots}) == len(slots) <= self.plan.max_tokens, "no step writes a slot twice"
        assert (np.diff(batch.query_start) > 0).all(), "a guess comes after a token that the step reads"
        self.entries[slots] = batch.tokens
        self.read_tokens += len(slots)
        logits = np.zeros((len(batch.logit_rows), VOCAB), np.float32)
        for row, length, table in zip(logits, batch.context_lens, batch.block_tables, strict=False):
            row[after(self.entries.reshape(-1, self.size)[table].ravel()[:length].tolist())] = 1
        return logits

    def read(self, result: Any) -> Any:
        return result


class Checking(Speculator):
    """Checks each guess; what it gives in their place is sometimes right."""

    def __init__(self, head: OwnHead, answers: Sequence[Sequence[int]]) -> None:
        super().__init__(head)
        self.head, self.answers, self.chance = head, answers, random.Random(0)
        self.guessed: list[int] = []

    def propose(self, texts: Sequence[Text], tokens: int, room: int) -> list[list[int]]:
        most = min(3, room // max(1, len(texts)))
        asked = [text._replace(most=min(text.most, most)) for text in texts]
        guesses = self.head.propose(asked)
        if len(texts) == 1 and guesses[0]:
            assert self.head.propose(asked) == guesses, "asked again, it guesses the same"
        for text, guess in zip(texts, guesses, strict=True):
            known = list(text.tokens)
            for token in guess:
                assert token == after(known[1:]), f"after {len(known)} tokens"
                known.append(token)
            self.guessed += [len(text.tokens)] if guess else []
        return [self._given(list(text.tokens), guess) for text, guess in zip(texts, guesses, strict=True)]

    def _given(self, tokens: list[int], guess: list[int]) -> list[int]:
        rights = [answer for answer in self.answers if answer[: len(tokens)] == tokens]
        is_right = rights and self.chance.random() < 0.7
        return list(rights[0][len(tokens) :][: len(guess)]) if is_right else guess


def test_all_of_each_text_and_nothing_twice() -> None:
    engine = HashEngine(max_tokens=20)
    head = HashHead(engine)
    base = [n % 7 for n in range(40)]
    # None share full blocks of 4 and then go on differently: the last entry of these would be that of who read last.
    prompts = [base, base[:18], [*base[:18], 9], [*base[:17], 8, 8, 8, 8], base[:39], [5, *base[:8]]]
    news: list[Any] = []
    requests = [r for prompt in prompts for r in engine.requests(prompt, Sampling(max_tokens=12), news.append)]
    answers = [request.answer.tokens + engine.alone(request) for request in requests]
    own = OwnHead(head, engine.pager)  # type: ignore[arg-type]
    engine.core.speculator = checking = Checking(own, answers)
    for request in [requests[0], *requests[:0:-1]]:  # some together with others, a prompt longer than a step
        engine.core.add(request)
    engine.run()
    assert [request.answer.tokens for request in requests] == answers
    assert max(checking.guessed) > 45 and min(checking.guessed) < 12
    for _ in range(2):
        before = head.read_tokens
        engine.add(base[:36], 1)
        answer = engine.add(base, 4)
        engine.run()
        assert answer.request.answer.tokens == answers[0][:44]
        assert head.read_tokens - before < 20, "it has read the prompt"
    forks = engine.requests([9, 8, 7, 6, 5] * 4 + [1, 2], Sampling(temperature=1, n=3, max_tokens=8, seed=3))
    answers = [request.answer.tokens + engine.alone(request) for request in forks]
    for request in forks:
        engine.core.add(request)
    engine.run()
    assert [request.answer.tokens for request in forks] == answers
    for following in (8, 9):
        answer = engine.add([*base[:16], following, 8, 8], 6)
        engine.run()
        assert answer.tokens == engine.alone(answer.request), "the last entry of a full block is read again"
    engine.check_empty()
    assert not own._read, "texts that have ended are forgotten"


class Texts:
    """Texts of sequences whose tokens, all but the last, the model has computed."""

    def __init__(self) -> None:
        self.engine = HashEngine(max_tokens=20)
        self.pager, slots = self.engine.pager, self.engine.host.slots
        self.own = OwnHead(HashHead(self.engine), self.pager)  # type: ignore[arg-type]
        slots[:] = np.arange(len(slots))

    def add(self, tokens: list[int], seq_id: int | None = None) -> Text:
        if seq_id is None:
            seq_id = self.pager.add_sequence()
            self.pager.append(seq_id, len(tokens) - 1)
            self.pager.take_copies()
        return Text(object(), tokens, 2, seq_id)

    def slots(self, text: Text) -> list[int]:
        """What the model has of a text."""
        assert text.seq_id is not None
        blocks = self.engine.host.slots.reshape(-1, self.pager.block_size)[self.pager.blocks_of(text.seq_id)]
        return blocks.ravel()[: len(text.tokens) - 1].tolist()

    def check(self, texts: Sequence[Text]) -> None:
        """Asks until there are guesses of each, which must be right, and whatever the model has stays as it is."""
        before, guesses = list(map(self.slots, texts)), dict[Any, list[int]]()
        for _ in texts:
            left = [text for text in texts if text.key not in guesses]
            guesses |= {text.key: guess for text, guess in zip(left, self.own.propose(left), strict=True) if guess}
        for text in texts:
            first, second = guesses[text.key]
            known = [*text.tokens[1:], first]
            assert (first, second) == (after(known[:-1]), after(known))
        assert list(map(self.slots, texts)) == before


def test_several_texts_share_a_step_as_far_as_it_goes() -> None:
    """Two that share blocks which the head has not read, and two that are together longer than a step."""
    texts = Texts()
    one = texts.add([3] * 10)
    assert one.seq_id is not None
    fork = texts.add([3] * 9 + [4], texts.pager.fork(one.seq_id))
    texts.check([one, fork, texts.add([1] * 13), texts.add([2] * 13)])


def test_a_block_is_known_once_all_of_it_has_been_read() -> None:
    texts = Texts()
    one = texts.add([5] * 11)
    texts.check([one])
    assert one.seq_id is not None
    texts.pager.append(one.seq_id, 2)
    texts.pager.take_copies()
    texts.check([texts.add([5] * 13, texts.pager.fork(one.seq_id))])
