"""What counts as generated: the tokens that answers get, wherever steps choose more."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

import mlxr
from mlxr.runtime.engine.answer_text import AnswerText
from mlxr.runtime.engine.make_requests import Terms
from mlxr.runtime.engine.sampling import Sampling
from mlxr_tests.byte_tokenizer import ByteTokenizer
from mlxr_tests.hash_host import HashEngine

PROMPT = [3, 10, 17, 25, 0, 9, 16, 23, 30, 7, 15]


@pytest.mark.parametrize("pipelines", [False, True], ids=["plain", "pipelined"])
def test_only_tokens_of_answers_count_as_generated(pipelines: bool) -> None:
    """A stop token ends an answer within several steps of a launch, and beside one that goes on."""
    engine = HashEngine(pipelines=pipelines)
    whole = engine.add(PROMPT[:5], 12)
    engine.run()
    for place in range(12):
        (request,) = engine.requests(PROMPT[:5], Sampling(max_tokens=30, stop_tokens=(whole.tokens[place],)))
        before = engine.core.stats().generated_tokens
        engine.core.add(request)
        other = engine.add(PROMPT[5:], 20)
        engine.run()
        got = len(request.answer.completion.token_ids) + len(other.tokens)
        assert engine.core.stats().generated_tokens - before == got


@pytest.mark.parametrize("options", [{}, {"stop_tokens": (410,)}, {"stop": ("zzz",)}, {"max_tokens": 9}])
def test_tokens_that_are_foreseen_give_the_events_of_single_ones(options: dict[str, object]) -> None:
    """Those of a launch are taken together where none of them can end the answer."""
    with mlxr.load("storyteller", host="cpu") as model:
        assert model.tokenizer is not None
        model.tokenizer.decode([5, *range(400, 430)])  # so that their texts are known
        sampling, random, num_foreseen = Sampling(**{"ignore_eos": True} | options), np.random.default_rng(5), 0  # type: ignore[arg-type]
        for _ in range(12):
            one, several = (model.make_requests([[5, 400, 7]], sampling, lambda _: None, Terms())[0] for _ in range(2))
            for request in (one, several):
                request.answer.completion.cached_tokens = 2
            while one.answer.completion.finish_reason is None and len(one.answer.tokens) < 40:
                tokens = random.integers(400, 430, 3).tolist()
                foreseen = several.foresee(tokens, 1.5)
                num_foreseen += foreseen is not None
                if foreseen is not None:
                    several.take(foreseen)
                for i, token in enumerate(tokens):
                    event = one.accept(token)
                    given = several.accept(token) if foreseen is None else foreseen[i]
                    assert asdict(replace(event, time=given.time)) == asdict(given)
                    if event.finish_reason:
                        break
            assert one.answer.tokens == several.answer.tokens
            assert replace(one.answer.completion) == several.answer.completion
        assert bool(num_foreseen) == ("stop" not in options)


def test_a_listener_that_ends_requests_within_a_launch_leaves_what_was_told() -> None:
    engine, told = HashEngine(pipelines=True), list[object]()
    (request,) = engine.requests(PROMPT[:5], Sampling(max_tokens=40))
    other = engine.add(PROMPT[5:], 40)
    listener = other.request.listener

    def listen(event: object) -> None:
        listener(event)  # type: ignore[arg-type]
        if len(other.tokens) == 11:
            engine.core.cancel(request)

    object.__setattr__(other.request, "listener", listen)
    object.__setattr__(request, "listener", told.append)
    engine.core.add(request)
    engine.run()
    ids = [event.token_id for event in told if event.token_id is not None]  # type: ignore[attr-defined]
    assert request.answer.completion.token_ids == ids and len(ids) < 40 == len(other.tokens)
    assert request.answer.tokens == [*PROMPT[:5], *ids]
    assert engine.core.stats().generated_tokens == len(ids) + 40


def test_launches_after_the_end_of_an_answer_leave_it_alone_at_every_moment() -> None:
    """Another thread may read it then: its last event has been told."""
    engine = HashEngine(pipelines=True)
    whole, seen = engine.add(PROMPT[:5], 40), list[tuple[object, int, int]]()
    engine.run()
    (request,) = engine.requests(PROMPT[:5], Sampling(max_tokens=60, stop_tokens=(whole.tokens[20],)))
    other, answer = engine.add(PROMPT[5:], 40), request.answer
    listener = other.request.listener

    def listen(event: object) -> None:
        seen.append((answer.completion.finish_reason, len(answer.completion.token_ids), len(answer.tokens)))
        listener(event)  # type: ignore[arg-type]

    object.__setattr__(other.request, "listener", listen)
    engine.core.add(request)
    engine.run()
    after = {lengths for lengths in seen if lengths[0] == "stop"}
    assert after == {("stop", (count := len(answer.completion.token_ids)), 5 + count)} and len(other.tokens) == 40


@pytest.mark.parametrize("place", [9, 12])
def test_an_interruption_among_the_tokens_of_a_launch_loses_none(place: int) -> None:
    engine = HashEngine(pipelines=True)
    alone = [engine.add(part, 40) for part in (PROMPT[:5], PROMPT[5:])]
    engine.run()
    again = [engine.add(part, 40) for part in (PROMPT[:5], PROMPT[5:])]
    listener = again[1].request.listener

    def listen(event: object) -> None:
        if len(again[1].tokens) == place and "interrupted" not in told:
            told.append("interrupted")
            raise KeyboardInterrupt
        listener(event)  # type: ignore[arg-type]

    told = list[str]()
    object.__setattr__(again[1].request, "listener", listen)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.run()
    assert again[0].tokens == alone[0].tokens
    assert again[1].tokens == [*alone[1].tokens[:place], *alone[1].tokens[place + 1 :]]  # one was on its way
    assert [len(one.request.answer.completion.token_ids) for one in again] == [40, 40]


def test_where_texts_cannot_be_foreseen_tokens_come_one_by_one() -> None:
    """What fails then fails its request alone, at the token of which it comes."""
    engine, text = HashEngine(pipelines=True), AnswerText(ByteTokenizer(), [], Sampling())
    one, other = engine.add(PROMPT[:5], 40), engine.add(PROMPT[5:], 40)

    def fail(*_: object) -> None:
        raise ValueError("broken")

    text._decoder = SimpleNamespace(push=lambda _: "x", flush=str, texts_of=fail)  # type: ignore[assignment]
    object.__setattr__(one.request, "text", text)
    engine.run()
    assert [len(other.tokens), one.request.answer.completion.text] == [40, "x" * 40]
