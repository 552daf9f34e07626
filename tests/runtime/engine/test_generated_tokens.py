"""What counts as generated: the tokens that answers get, wherever steps choose more."""

from dataclasses import asdict, replace

import numpy as np
import pytest

import mlxr
from mlxr.runtime.engine.make_requests import Terms
from mlxr.runtime.engine.sampling import Sampling
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
