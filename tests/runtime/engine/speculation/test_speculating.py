"""Requests that speculate get the tokens that they get without, whatever is guessed, and right guesses save steps."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError, RequestError
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.engine.speculation.step_costs import StepCosts
from mlxr.runtime.engine.speculation.text import Text
from mlxr_tests.few import few
from mlxr_tests.storyteller import TINY, tiny_spec

Guess = Callable[[list[int], int], list[int]]


class Guesser(Speculator):
    """Guesses as a function of the text says, as much as there is room for."""

    def __init__(self, guess: Guess) -> None:
        super().__init__()
        self._guess_of = guess

    def propose(self, texts: Sequence[Text], tokens: int, room: int) -> list[list[int]]:
        drafts = []
        for text in texts:
            drafts.append(self._guess_of(list(text.tokens), min(text.most, room)))
            room -= len(drafts[-1])
        return drafts


@pytest.fixture(scope="module", params=few(["cpu", "reference", "sim"], ["cpu"]))
def model(request: pytest.FixtureRequest) -> Model:
    """640 tokens, a context of 64, steps of 16 tokens, 3 sequences, 8 blocks of 16. `reference` is told to pipeline."""
    cache = {"num_blocks": 8, "max_sequences": 3, "mode": "paged"}
    spec = tiny_spec(model={"context": 64}, cache=cache, prefill_chunk=16, compute="exact", deterministic=True)
    loaded = mlxr.load(compile_spec(spec).artifact, TINY, host=request.param)
    if request.param == "reference":
        setattr(loaded.host, "pipelines", True)  # noqa: B010 (of the class, as far as types go)
    return loaded


@pytest.fixture(autouse=True)
def nothing_is_kept(model: Model) -> Iterator[None]:
    """Every test must leave the arena empty."""
    yield
    model.core.speculator = None
    model.pager.check_integrity()
    assert model.pager.num_sequences == 0


def ids(count: int, start: int = 300) -> list[int]:
    return [1, *range(start, start + count - 1)]


PROMPTS = [ids(9), ids(14, 400), ids(5, 500)]
SAMPLINGS = [mlxr.Sampling(), mlxr.Sampling(temperature=1.2, top_k=40, seed=7, logprobs=2)]


def run(
    model: Model, guess: Guess | None, prompts: list[list[int]], sampling: mlxr.Sampling, most: int = 30
) -> list[Completion]:
    model.core.speculator = None if guess is None else Guesser(guess)
    return model.start(prompts, max_tokens=most, sampling=sampling, ignore_eos=True).finish()


def right(answers: list[Completion], prompts: list[list[int]], wrong_after: int | None = None) -> Guess:
    """Guesses what these answers were; if told so, wrongly from some place of each draft on."""
    texts = [[*prompt, *answer.token_ids] for prompt, answer in zip(prompts, answers, strict=True)]

    def guess(tokens: list[int], most: int) -> list[int]:
        (text,) = [text for text in texts if text[: len(tokens)] == tokens]
        draft = text[len(tokens) : len(tokens) + min(most, 5)]
        if wrong_after is not None:
            draft[wrong_after:] = [(token + 1) % 640 for token in draft[wrong_after:]]
        return draft

    return guess


def noise(tokens: list[int], most: int) -> list[int]:
    chance = random.Random(len(tokens))
    return [chance.randrange(640) for _ in range(min(most, chance.randrange(6)))]


def same(first: list[Completion], second: list[Completion]) -> bool:
    """Equal tokens, texts, ends and log probabilities; what was cached may differ."""
    return [replace(a, cached_tokens=0) for a in first] == [replace(b, cached_tokens=0) for b in second]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_the_answers_are_those_without(model: Model, sampling: mlxr.Sampling) -> None:
    plain = run(model, None, PROMPTS, sampling)
    guesses = {"right": right(plain, PROMPTS), "noise": noise}
    guesses |= {f"wrong after {n}": right(plain, PROMPTS, n) for n in (0, 1, 3)}
    for name, guess in guesses.items():
        before = model.core.stats()
        answers = run(model, guess, PROMPTS, sampling)
        after = model.core.stats()
        assert same(answers, plain), name
        tried, accepted = after.draft_tokens - before.draft_tokens, after.accepted_tokens - before.accepted_tokens
        assert tried > 0
        assert {"right": accepted == tried, "wrong after 0": not accepted}.get(name, accepted < tried), name


def test_right_guesses_save_steps(model: Model) -> None:
    plain = run(model, None, PROMPTS[:1], SAMPLINGS[0])
    for guess, steps in ((right(plain, PROMPTS[:1]), 6), (right(plain, PROMPTS[:1], 0), 30)):
        before = model.core.stats().steps
        run(model, guess, PROMPTS[:1], SAMPLINGS[0])
        # One for the prompt, which gives the first token; then 6 tokens at a time for the other 29, or 1.
        assert model.core.stats().steps - before == steps


@pytest.mark.parametrize("prompt", [40, 58, 61, 62, 63])
def test_at_the_end_of_the_context(model: Model, prompt: int) -> None:
    prompts = [ids(prompt)]
    plain = run(model, None, prompts, SAMPLINGS[0], 100)
    assert plain[0].finish_reason == "context"
    assert same(run(model, right(plain, prompts), prompts, SAMPLINGS[0], 100), plain)
    assert same(run(model, right(plain, prompts, 1), prompts, SAMPLINGS[0], 100), plain)


def test_an_answer_ends_within_a_draft(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was guessed after the end is forgotten, and what the arena has of the answer can be found again."""
    plain = run(model, None, PROMPTS[:1], SAMPLINGS[1])
    place = next(i for i, token in enumerate(plain[0].token_ids) if i > 6 and token not in plain[0].token_ids[:i])
    monkeypatch.setattr(model._maker, "_eos_ids", frozenset([plain[0].token_ids[place]]))
    for guess in (None, right(plain, PROMPTS[:1])):
        model.core.speculator = guess and Guesser(guess)
        (answer,) = model.start(PROMPTS[:1], max_tokens=30, sampling=SAMPLINGS[1]).finish()
        assert (answer.finish_reason, answer.token_ids) == ("stop", plain[0].token_ids[: place + 1])
    longer = [*PROMPTS[0], *answer.token_ids, 3]
    assert run(model, None, [longer], SAMPLINGS[0], 1)[0].cached_tokens >= len(PROMPTS[0]) + place - 1


def test_preemption(model: Model) -> None:
    """8 blocks of 16 hold no three answers of 60 tokens: requests lose their blocks, and go on later."""
    prompts = [ids(16), ids(17, 400), ids(18, 500)]
    plain = [run(model, None, [prompt], SAMPLINGS[1], 44)[0] for prompt in prompts]
    for n in (None, 2):
        before = model.core.stats().preemptions
        answers = run(model, right(plain, prompts, n), prompts, SAMPLINGS[1], 44)
        assert same(answers, plain)
        assert model.core.stats().preemptions > before


def test_samples_of_a_prompt_draw_by_their_own_numbers(model: Model) -> None:
    sampling = mlxr.Sampling(temperature=1.2, seed=3, n=3)
    plain = run(model, None, PROMPTS[:1], sampling, 20)
    assert same(run(model, noise, PROMPTS[:1], sampling, 20), plain)


def test_beside_others_that_do_not_speculate(model: Model) -> None:
    """The first prompt speculates, the second one does not because of its penalty; each has its tokens alone."""
    penalty = mlxr.Sampling(frequency_penalty=0.5, temperature=0.8, seed=1)
    plain = [run(model, None, [p], s)[0] for p, s in zip(PROMPTS, (SAMPLINGS[1], penalty), strict=False)]
    model.core.speculator = Guesser(right(plain[:1], PROMPTS[:1], 2))
    first, second = (
        model.start([prompt], max_tokens=30, sampling=sampling, ignore_eos=True)
        for prompt, sampling in zip(PROMPTS, (SAMPLINGS[1], penalty), strict=False)
    )
    next(first), next(second)
    assert same([first.finish()[0], second.finish()[0]], plain)


def test_who_does_not_speculate(model: Model) -> None:
    before = model.core.stats().draft_tokens
    for sampling in (mlxr.Sampling(repetition_penalty=1.3), mlxr.Sampling(prompt_logprobs=1)):
        plain = run(model, None, PROMPTS, sampling, 10)
        assert same(run(model, noise, PROMPTS, sampling, 10), plain)
    assert model.core.stats().draft_tokens == before


def test_a_guesser_that_fails_ends_the_requests_that_speculate(model: Model) -> None:
    def fail(tokens: list[int], most: int) -> list[int]:
        raise HostError("no guess")

    with pytest.raises(HostError, match="no guess"):
        run(model, fail, PROMPTS, SAMPLINGS[0])
    assert run(model, None, PROMPTS[:1], SAMPLINGS[0], 1)[0].finish_reason == "length"


def test_a_draft_model_and_prompt_lookup_by_name(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # Any draft is worth its time if a step takes seconds.
    monkeypatch.setattr(
        StepCosts, "seconds", lambda self, tokens, most: [1 + 0.01 * i for i in range(most - tokens + 1)]
    )
    loop = [[*ids(9), *ids(9), *ids(4)]]
    plain = run(model, None, loop, SAMPLINGS[0])
    spec = tiny_spec(model={"context": 64}, compute="exact")
    for options, least in (({"draft": TINY}, 2), ({"prompt_lookup": True}, 1)):
        with mlxr.load(spec, TINY, host="cpu", **options) as other:
            answers = other.start(loop, max_tokens=30, ignore_eos=True).finish()
            assert [a.token_ids for a in answers] == [a.token_ids for a in plain]
            tokens_per_step = other.core.stats().tokens_per_step
            assert tokens_per_step is not None and tokens_per_step >= least
            with pytest.raises(RequestError, match="speculates already"):
                other.speculate()
    with pytest.raises(RequestError, match="choose one of them"):
        mlxr.load(spec, TINY, draft=TINY, prompt_lookup=True)
    with pytest.raises(RequestError, match="cannot be the draft model of tiny-Q8_0: token"):
        mlxr.load(spec, TINY, host="cpu", draft="storyteller")
