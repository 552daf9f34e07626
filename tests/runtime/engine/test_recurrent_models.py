"""Models with recurrent layers: what is computed of a prompt that goes on, and the same bits in any way."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

import mlxr
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.make_requests import Terms
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.speculation.draft_model import Text
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few
from mlxr_tests.specs import compiled
from mlxr_tests.thread_ranks import save_canonical

MODELS = ["short-conv", "short-conv-alone", "delta", "ssm", "ssm-beside-attention"]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
"""Two blocks of 4, and a half."""


@pytest.fixture(scope="module", params=few(MODELS, ["short-conv", "delta", "ssm-beside-attention"]))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A context of 64 in blocks of 4, steps of 8 tokens, 3 sequences."""
    cache = {"dtype": "f32", "block_size": 4, "max_sequences": 3}
    exact = {"compute": "exact", "deterministic": True, "cache": cache, "prefill_chunk": 8, "model__context": 64}
    artifact = compiled(family_spec(request.param, **exact), target="cpu")
    with mlxr.load(artifact, save_canonical(tmp_path_factory.mktemp("weights"), artifact), host="cpu") as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def nothing_is_kept(model: Model) -> Iterator[None]:
    """Every test must leave the arena empty."""
    yield
    model.core.speculator = None
    model.pager.check_integrity()
    assert model.pager.num_sequences == 0


def ask(model: Model, *prompts: Sequence[int], salt: str = "", most: int = 8, **sampling: object) -> list[Completion]:
    """Answers to prompts at the same time; with a salt of its own nothing is found of earlier ones."""
    terms, chosen = Terms(salt=salt), mlxr.Sampling(max_tokens=most, ignore_eos=True, logprobs=2, **sampling)
    requests = model.make_requests(list(prompts), chosen, lambda news: None, terms)
    for request in requests:
        model.core.add(request)
    while model.core.step():
        model.pager.check_integrity()
    return [request.answer.completion for request in requests]


def alone(model: Model, prompt: Sequence[int], **terms: object) -> Completion:
    """The answer where nothing is known and nobody else asks."""
    alone.count += 1
    return ask(model, prompt, salt=f"alone {alone.count}", **terms)[0]


alone.count = 0


def same(answer: Completion, other: Completion) -> bool:
    """Equal tokens and log probabilities; what was cached may differ."""
    return replace(answer, cached_tokens=0) == replace(other, cached_tokens=0)


def test_the_second_turn_computes_only_what_is_new(model: Model) -> None:
    (first,) = ask(model, PROMPT, salt="turns")
    talk = [*PROMPT, *first.token_ids, 7, 8, 9]
    (second,) = ask(model, talk, salt="turns")
    assert second.cached_tokens == len(PROMPT) + len(first.token_ids) - 1, "the last token was never computed"
    assert same(second, alone(model, talk))
    (third,) = ask(model, [*talk, *second.token_ids, 30, 31], salt="turns")
    assert third.cached_tokens == len(talk) + len(second.token_ids) - 1


def test_another_question_begins_at_the_end_of_the_prompt(model: Model) -> None:
    ask(model, PROMPT, salt="again")
    (other,) = ask(model, [*PROMPT, 40, 41], salt="again")
    assert other.cached_tokens == len(PROMPT) and same(other, alone(model, [*PROMPT, 40, 41]))
    (same_prompt,) = ask(model, PROMPT, salt="again")
    assert same_prompt.cached_tokens == 8 and same(same_prompt, alone(model, PROMPT))


def test_several_answers_to_a_prompt(model: Model) -> None:
    chosen = {"temperature": 1.3, "seed": 5}
    answers = ask(model, PROMPT, salt="several", n=3, **chosen)
    assert len({tuple(answer.token_ids) for answer in answers}) > 1
    again = ask(model, PROMPT, salt="several again", n=3, **chosen)
    assert all(same(*pair) for pair in zip(answers, again, strict=True))
    assert same(answers[0], alone(model, PROMPT, **chosen))


def test_in_company_and_cut_in_any_way(model: Model) -> None:
    prompts = [[*PROMPT, *range(20, 20 + i)] for i in (0, 9, 20, 1)]
    apart = [alone(model, prompt) for prompt in prompts]
    together = ask(model, *prompts, salt="company")
    assert all(same(*pair) for pair in zip(together, apart, strict=True))


class _Guesser(Speculator):
    """Guesses what an answer will be, and wrongly from some token of each draft on."""

    def __init__(self, text: list[int], wrong_after: int) -> None:
        super().__init__()
        self._text, self._wrong_after = text, wrong_after

    def propose(self, texts: Sequence[Text], tokens: int, room: int) -> list[list[int]]:
        drafts = []
        for text in texts:
            known = len(list(text.tokens))
            draft = self._text[known : known + min(text.most, room, 4)]
            wrong = [(token + 1) % 61 for token in draft[self._wrong_after :]]
            drafts.append([*draft[: self._wrong_after], *wrong])
            room -= len(draft)
        return drafts


@pytest.mark.parametrize("wrong_after", [0, 1, 4])
def test_guesses_are_undone(model: Model, wrong_after: int) -> None:
    plain = alone(model, PROMPT, most=20)
    model.core.speculator = _Guesser([*PROMPT, *plain.token_ids], wrong_after)
    before = model.core.stats()
    guessed = alone(model, PROMPT, most=20)
    after = model.core.stats()
    assert same(guessed, plain) and after.draft_tokens > before.draft_tokens
    assert (after.accepted_tokens > before.accepted_tokens) == (wrong_after > 0)
