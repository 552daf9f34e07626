"""What speculation gains and loses, on texts that are known, with steps whose times are known."""

import random
from collections.abc import Callable, Sequence

import pytest

from mlxr.runtime.engine.speculation.draft_model import DraftModel
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.engine.speculation.text import Text

SECONDS = [1, 1.15, 1.26, 1.27, 1.28, 1.3, 1.3, 1.3, 1.35, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4]
"""Of steps with 1 to 16 tokens, about those of the 100M model on host cpu."""


class FakeDraftModel(DraftModel):
    """Makes guesses by a function of the text; each takes a fifth of a step, whatever was measured."""

    each = 0.2

    def __init__(self, guess: Callable[[Sequence[int], int], list[int]]) -> None:
        self._guess_of, self.asked = guess, 0

    def propose(self, texts: Sequence[Text]) -> list[list[int]]:
        self.asked += max(text.most for text in texts)
        return [self._guess_of(text.tokens, text.most) for text in texts]

    def seconds(self, guesses: int) -> float:
        return self.each * guesses

    def measure_anew(self) -> None:
        self.each = 0.2

    def end(self, key: object) -> None:
        pass


def speedup(speculator: Speculator, prompt: list[int], answer: list[int], model: FakeDraftModel | None = None) -> float:
    """Time of plain decoding over that with speculation."""
    noise, seconds, tokens = random.Random(1), 0.0, list(prompt)
    while left := len(prompt) + len(answer) - len(tokens):
        asked = model.asked if model else 0
        (draft,) = speculator.propose([Text("a", tokens, left - 1)], 1, 15)
        assert len(draft) < left
        accepted, rest = 0, answer[len(tokens) - len(prompt) :]
        while accepted < len(draft) and draft[accepted] == rest[accepted]:
            accepted += 1
        tokens += rest[: accepted + 1]
        seconds += SECONDS[len(draft)] + 0.2 * ((model.asked if model else 0) - asked)
        speculator.costs.measured(1 + len(draft), SECONDS[len(draft)] * noise.uniform(0.95, 1.3))
    return len(answer) / seconds


def text(count: int, seed: int = 0, vocab: int = 30_000) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(vocab) for _ in range(count)]


def test_a_copy_is_made_in_few_steps() -> None:
    passage, speculator = text(100), Speculator()
    assert speedup(speculator, [*passage, *text(10, 1), *passage[:3]], [*passage[3:], *passage]) > 4


@pytest.mark.parametrize("vocab", [30_000, 20, 5])
def test_what_cannot_be_guessed_costs_little(vocab: int) -> None:
    """With few tokens in the vocabulary, lookups find a place for nearly every pair, and guess wrong."""
    assert speedup(Speculator(), text(50, 1, vocab), text(600, 2, vocab)) > 0.98


def test_it_begins_when_the_text_begins_to_repeat_itself() -> None:
    speculator, passage = Speculator(), text(300, 2, 20)
    speedup(speculator, [], passage)
    assert speedup(speculator, passage, [*passage[:100], *passage[50:150]]) > 3


def test_a_draft_model_that_guesses_right_is_asked_for_more() -> None:
    answer = text(300)
    model = FakeDraftModel(lambda tokens, most: answer[len(tokens) : len(tokens) + most])
    assert speedup(Speculator(model), [], answer, model) > 2


def test_a_draft_model_that_guesses_wrong_rests() -> None:
    answer = text(1000)
    model = FakeDraftModel(lambda tokens, most: [-1] * most)
    assert speedup(Speculator(model), [], answer, model) > 0.97
    assert model.asked > 3, "it tries again"


def test_times_of_good_guesses_that_were_disturbed_are_measured_anew() -> None:
    answer = text(700)
    right = FakeDraftModel(lambda tokens, most: answer[len(tokens) : len(tokens) + most])
    wrong = FakeDraftModel(lambda tokens, most: [-1] * most)
    for model in (right, wrong):
        speculator = Speculator(model)
        speedup(speculator, [], answer[:100], model)
        model.each = 9.0
        speed = speedup(speculator, answer[:100], answer[100:], model)
        assert speed > 1.5 if model is right else speed > 0.97 and model.each == 9.0


def test_several_texts_share_a_step() -> None:
    """The text that can be guessed gets the draft."""
    speculator = Speculator()
    for _ in range(3):
        speculator.costs.measured(2, 1.0)
    loop, other = [1, 2, 3] * 10, text(30)
    drafts = speculator.propose([Text("other", other, 9), Text("loop", loop, 9)], 2, 4)
    assert drafts[0] == [] and drafts[1] == [1, 2, 3, 1][: len(drafts[1])] and drafts[1]
    assert sum(map(len, speculator.propose([Text("loop", loop, 9), Text("again", loop, 1)], 2, 4))) <= 4
    speculator.end("loop")
    speculator.end("never seen")
