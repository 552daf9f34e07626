"""Speculation with a head that is asked each time, and whose guesses tests may put right."""

from collections.abc import Sequence

import mlxr
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.speculation.own_head import OwnHead
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.engine.speculation.text import Text


class Eager(Speculator):
    """Asks the head for three tokens each time; `right` are guesses in place of the head's, so that some are right."""

    def __init__(self, head: OwnHead, right: dict[tuple[int, ...], list[int]] | None = None) -> None:
        super().__init__(head)
        self.head, self.right, self.guesses = head, right or {}, dict[tuple[int, ...], list[int]]()

    def propose(self, texts: Sequence[Text], tokens: int, room: int) -> list[list[int]]:
        most = min(3, room // max(1, len(texts)))
        guesses = self.head.propose([text._replace(most=min(text.most, most)) for text in texts])
        for text, guess in zip(texts, guesses, strict=True):
            self.guesses[tuple(text.tokens)] = guess
        right = (
            self.right.get(tuple(text.tokens), guess)[: len(guess)] for text, guess in zip(texts, guesses, strict=True)
        )
        return list(right)


def head_of(model: Model) -> OwnHead:
    assert model._head is not None
    return model._head


def run(
    model: Model, speculator: Speculator | None, prompts: list[list[int]], sampling: mlxr.Sampling, most: int = 30
) -> list[list[int]]:
    model.core.speculator = speculator
    answers = model.start(prompts, max_tokens=most, sampling=sampling, ignore_eos=True).finish()
    return [answer.token_ids for answer in answers]


def rights(prompts: list[list[int]], answers: list[list[int]], wrong: int) -> dict[tuple[int, ...], list[int]]:
    """After each start of a text, its next three tokens, of which that at `wrong` is wrong."""
    found = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        text = [*prompt, *answer]
        for end in range(len(prompt), len(text)):
            following = enumerate(text[end : end + 3])
            found[tuple(text[:end])] = [abs(t - 1) if i == wrong else t for i, t in following]
    return found
