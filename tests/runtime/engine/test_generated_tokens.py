"""What counts as generated: the tokens that answers get, wherever steps choose more."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mlxr
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine import together
from mlxr.runtime.engine.answer_text import AnswerText
from mlxr.runtime.engine.completion import Event, EventsTogether
from mlxr.runtime.engine.generation import Generation
from mlxr.runtime.engine.listeners import Inbox
from mlxr.runtime.engine.make_requests import Terms
from mlxr.runtime.engine.model_tokenizer import ModelTokenizer
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.together import Together
from mlxr.runtime.hosts.cuda.host import CudaHost
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


def events_in(inbox: Inbox) -> list[Event]:
    """Those that an inbox has, whether they were told one by one or together."""
    events = list[Event]()
    for news in inbox:
        assert not isinstance(news, BaseException)
        events += [news] if isinstance(news, Event) else news
    return events


@pytest.mark.parametrize("options", [{}, {"stop_tokens": (410,)}, {"stop": ("zzz",)}, {"max_tokens": 9}])
def test_tokens_that_are_given_together_give_the_events_of_single_ones(options: dict[str, object]) -> None:
    """Those of a launch are, where none can end the answer; characters may begin in one launch and end later."""
    with mlxr.load("storyteller", host="cpu") as model:
        sampling, random, num_together = Sampling(**{"ignore_eos": True} | options), np.random.default_rng(5), 0  # type: ignore[arg-type]
        for first in (3, 300, 3, 300):
            inbox = Inbox()
            one, *several = (
                model.make_requests([[5, first, 7]], sampling, listener, Terms())[0]
                for listener in (print, inbox, inbox)
            )
            for request in (one, *several):
                request.answer.completion.cached_tokens = 2
            giver, told = Together(), list[Event]()
            while one.answer.completion.finish_reason is None and len(one.answer.tokens) < 60:
                tokens = [*random.integers(first, 430, 2).tolist(), 4100]  # which the tokenizer lacks
                step, decode = SimpleNamespace(most_more=0, starts=[len(one.answer.tokens) - 1] * 2), SimpleNamespace()
                decode.requests = several
                rows = giver.give(step, decode, np.array([[token] * 2 for token in tokens], np.int32), 1.5, print)  # type: ignore[arg-type]
                num_together += len(rows)
                for token in tokens:
                    told += [event := replace(one.accept(token), time=1.5)]
                    if not rows:
                        inbox.extend([replace(request.accept(token), time=1.5) for request in several])
                    if event.finish_reason:
                        break
                if not rows:
                    giver.forget()
            assert [asdict(event) for event in events_in(inbox)] == [asdict(event) for event in told for _ in several]
            left = one.text.flush()
            for request in several:
                assert one.answer.tokens == request.answer.tokens
                assert one.answer.completion == request.answer.completion
                assert left == request.text.flush()
        assert bool(num_together) == ("stop" not in options)


def test_tokens_beyond_the_tokenizer_and_those_that_were_learned_need_no_decoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with mlxr.load("storyteller", host="cpu") as model:
        assert model.tokenizer is not None
        tokenizer = ModelTokenizer(model._file, model._file.path, None, 5000)
        tokenizer.learn_all(CudaHost)
        while threads := [thread for thread in threading.enumerate() if thread.name == "mlxr-texts"]:
            threads[0].join()
        assert tokenizer.tokenizer is not None
        (decoder := tokenizer.tokenizer.stream_decoder()).push(300)
        assert decoder.table is not None
        table = decoder.table.copy()  # `bytes_of` learns, too
        whole = [token for token in range(300, 4096) if tokenizer.tokenizer.bytes_of(token).isalpha()]
        assert len(whole) > 1000 and all([table[token] for token in whole])
        (request,) = model.make_requests([[5, 300, 7]], Sampling(max_tokens=50), Inbox(), Terms())
        step, decode = SimpleNamespace(most_more=9, starts=[2]), SimpleNamespace(requests=[request])
        giver = Together()
        giver.give(step, decode, np.array([[300]], np.int32), 1.5, print)  # type: ignore[arg-type]
        monkeypatch.setattr(AnswerText, "ahead", None)
        assert giver.give(step, decode, np.array([[300], [4096], [4999]], np.int32), 1.5, print) == [0]  # type: ignore[arg-type]


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


def test_where_texts_cannot_be_found_ahead_tokens_come_one_by_one() -> None:
    """What fails then fails its request alone, at the token of which it comes."""
    engine, text = HashEngine(pipelines=True), AnswerText(ByteTokenizer(), [], Sampling())
    one, other = engine.add(PROMPT[:5], 40), engine.add(PROMPT[5:], 40)

    def fail(*_: object) -> None:
        raise ValueError("broken")

    text._decoder = SimpleNamespace(push=lambda _: "x", flush=str, table=None, copy=fail)  # type: ignore[assignment]
    object.__setattr__(one.request, "text", text)
    engine.run()
    assert [len(other.tokens), one.request.answer.completion.text] == [40, "x" * 40]


def test_a_listener_of_several_tokens_that_fails_ends_its_own_requests_only() -> None:
    engine = HashEngine(pipelines=True)
    one, other = engine.add(PROMPT[:5], 40), engine.add(PROMPT[5:], 40)

    class Fails(Inbox):
        def tell_all(self, events: Sequence[object]) -> None:
            raise ValueError("broken")

    object.__setattr__(one.request, "listener", Fails())
    engine.run()
    assert len(other.tokens) == 40 and one.request.answer.completion.finish_reason == "cancelled"
    assert engine.core.stats().blocks_free == engine.core.stats().blocks


def test_the_requests_of_one_listener_get_their_tokens_step_by_step() -> None:
    """Also beside requests of other listeners, and where one of them ends within a launch."""
    engine = HashEngine(pipelines=True)
    alone, inbox = [engine.add(part, 40) for part in (PROMPT[:5], PROMPT[5:])], Inbox()
    engine.run()
    stop = Sampling(max_tokens=40, stop_tokens=(alone[1].tokens[21],))
    length = alone[1].tokens.index(alone[1].tokens[21]) + 1
    own = [*engine.requests(PROMPT[:5], Sampling(max_tokens=40), inbox), *engine.requests(PROMPT[5:], stop, inbox)]
    other = engine.add(PROMPT[2:8], 40)
    for index, request in enumerate(own):
        object.__setattr__(request, "index", index)
        engine.core.add(request)
    engine.run()
    first, second = ([event.token_id for event in events_in(inbox) if event.index == i] for i in (0, 1))
    assert [first, second, len(other.tokens)] == [alone[0].tokens, alone[1].tokens[:length], 40]
    order = [event.index for event in events_in(inbox)]
    assert order == [0, 1] * length + [0] * (40 - length), "one step after the other"
    assert any(isinstance(news, EventsTogether) and len(news) > 2 for news in inbox), "whose events were not made"


def test_events_that_are_told_together_can_be_taken_in_any_order() -> None:
    texts = [f"{i}" for i in range(6)]
    told = EventsTogether([(7, 2), (8, 0), (9, 1)], [*range(6)], texts, 1.5)
    events = [Event(7 + i % 3, i, texts[i], cached_tokens=(2, 0, 1)[i % 3], time=1.5) for i in range(6)]
    for own, places in (
        (told, (0, 1, 2)),
        (told.of([0, 2]), (0, 2)),
        (told.of([1]), (1,)),
        (told.of([0, 1, 2]), (0, 1, 2)),
    ):
        expected = [asdict(event) for i, event in enumerate(events) if i % 3 in places]
        assert [asdict(event) for event in own] == expected and len(own) == len(expected)
        assert asdict(own[-1]) == expected[-1] and [asdict(event) for event in own[1:]] == expected[1:]


def test_a_character_that_begins_beside_anothers_stop_token_goes_on_in_the_next_launch() -> None:
    """A token that ends others' answers has each looked at: what is known of their texts then is old."""
    with mlxr.load("storyteller", host="cpu") as model:
        tokenizer, free = model.tokenizer, Sampling(ignore_eos=True)
        assert tokenizer is not None
        spelled = [tokenizer.bytes_of(token) for token in range(tokenizer.vocab_size)]
        begin, a, b = (len(spelled) - 1 - spelled[::-1].index(data) for data in (b"\xe2", b"a", b"b"))
        giver, decode = Together(), SimpleNamespace()
        one, first, second = (
            model.make_requests([[5, a, 7]], sampling, Inbox(), Terms())[0]
            for sampling in (free, replace(free, stop_tokens=(b,)), free)
        )
        decode.requests = [first, second]
        for launch in ([a, a], [a, a], [b, begin], [a, a]):
            step = SimpleNamespace(most_more=9, starts=[len(one.answer.tokens) - 1] * 2)
            assert giver.give(step, decode, np.array([[a, token] for token in launch], np.int32), 1.5, print) == [0, 1]  # type: ignore[arg-type]
            for token in launch:
                one.accept(token)
        assert second.answer.completion == one.answer.completion and one.answer.completion.text == "aaaab\ufffdaa"


@pytest.mark.parametrize("place", ["take_tokens", "of", "tell_all"])
def test_an_interruption_of_tokens_that_are_given_together_loses_none(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are computed again, wherever it came, unless they were told."""
    engine = HashEngine(pipelines=True)
    alone = [engine.add(part, 40) for part in (PROMPT[:5], PROMPT[5:])]
    engine.run()
    again = [engine.add(part, 40) for part in (PROMPT[:5], PROMPT[5:])]
    calls, tell = list[int](), again[0].tell_all

    def interrupted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            result = function(*given)
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return result

        return call

    if place == "tell_all":
        again[0].tell_all = interrupted(tell)  # type: ignore[method-assign]
    else:
        owner: Any = EventsTogether if place == "of" else together
        monkeypatch.setattr(owner, place, interrupted(getattr(owner, place)))
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.run()
    assert [one.tokens for one in again] == [one.tokens for one in alone]
    assert [len(one.request.answer.completion.token_ids) for one in again] == [40, 40]


@pytest.mark.parametrize("with_model", [False, True])
def test_tokens_that_were_told_together_and_not_taken_are_lost(with_model: bool) -> None:
    """That they are lost with their model, whoever asks for the next one is told."""
    inbox = Inbox([EventsTogether([(0, 0)], [5, 6], ["a", "b"], 0.0)])
    generation = Generation(HashEngine().core, [], inbox)
    assert next(generation).token_id == 5
    if with_model:
        generation.end_with_model()
        with pytest.raises(RequestError, match="the model was closed before the answer ended"):
            next(generation)
    generation.close()
    assert with_model or not [*generation]
