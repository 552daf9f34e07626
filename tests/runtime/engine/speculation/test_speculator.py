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
    """Makes guesses by a function of the text; each takes a fifth of a step, whatever was measured.

    Attributes:
        now: the time; of it passes what it takes.
        to_read: what it takes to read a token.
    """

    each = 0.2

    def __init__(self, guess: Callable[[Sequence[int], int], list[int]], to_read: float = 0.0) -> None:
        self._guess_of, self.to_read = guess, to_read
        self.asked, self.now = 0, 0.0
        self._read: dict[object, int] = {}

    def propose(self, texts: Sequence[Text]) -> list[list[int]]:
        self.asked += max(text.most for text in texts)
        for text in texts:
            if text.most:
                self.now += 0.2 * text.most + self.reading(text)
                self._read[text.key] = len(text.tokens)
        return [self._guess_of(text.tokens, text.most) for text in texts]

    def seconds(self, guesses: int) -> float:
        return self.each * guesses

    def reading(self, text: Text) -> float:
        return self.to_read * (len(text.tokens) - self._read.get(text.key, 0))

    def measure_anew(self) -> None:
        self.each = 0.2

    def end(self, key: object) -> None:
        self._read.pop(key, None)


def speedup(speculator: Speculator, prompt: list[int], answer: list[int], model: FakeDraftModel | None = None) -> float:
    """Time of plain decoding over that with speculation."""
    noise, seconds, tokens = random.Random(1), 0.0, list(prompt)
    while left := len(prompt) + len(answer) - len(tokens):
        begun = model.now if model else 0.0
        (draft,) = speculator.propose([Text("a", tokens, left - 1)], 1, 15)
        assert len(draft) < left
        accepted, rest = 0, answer[len(tokens) - len(prompt) :]
        while accepted < len(draft) and draft[accepted] == rest[accepted]:
            accepted += 1
        tokens += rest[: accepted + 1]
        seconds += SECONDS[len(draft)] + ((model.now if model else 0.0) - begun)
        speculator.measured(1, len(draft), SECONDS[len(draft)] * noise.uniform(0.95, 1.3))
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


@pytest.mark.parametrize("length", [300, 3000])
def test_trials_take_half_a_percent_of_the_time(length: int) -> None:
    """Reading what it must before it guesses is most of what a trial takes: else texts would cost 3 %."""
    model = FakeDraftModel(lambda tokens, most: [-1] * most, to_read=0.06)
    speculator, answer = Speculator(model, lambda: model.now), text(length)
    speedup(speculator, [], answer, model)
    asked, texts = model.asked, 9000 // length
    speeds = []
    for _ in range(texts):
        speculator.end("a")
        speeds.append(speedup(speculator, [], answer, model))
    assert texts / sum(1 / speed for speed in speeds) > 0.99
    assert model.asked > asked, "it tries again"


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
