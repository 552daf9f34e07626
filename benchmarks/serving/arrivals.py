"""Requests that come one after another, as clients of a server send them; the same for every engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from peers.worker import random_tokens

from mlxr.bench.lengths import LengthRange


@dataclass(frozen=True)
class Arrival:
    """One request.

    Attributes:
        at: when it comes, in seconds from the start of the measurement.
        prompt: token ids.
        tokens: how many tokens the answer has; end tokens are ignored.
    """

    at: float
    prompt: Sequence[int]
    tokens: int


@dataclass(frozen=True)
class Answer:
    """What became of a request. Times are in seconds from the start of the measurement.

    Attributes:
        times: when each token came, or the first and the last one if the engine tells no others.
        tokens: how many came.
    """

    times: list[float]
    tokens: int


@dataclass(frozen=True)
class Traffic:
    """Requests that come by a Poisson process, with lengths drawn evenly from two ranges.

    Attributes:
        count: how many requests.
        rate: mean of requests that come in a second.
        prompts: lengths of prompts.
        answers: lengths of answers.
        seed: of times and lengths.
    """

    count: int
    rate: float
    prompts: LengthRange = field(default_factory=lambda: LengthRange(50, 1500))
    answers: LengthRange = field(default_factory=lambda: LengthRange(20, 300))
    seed: int = 1

    def arrivals(self, vocab: int, turn: int = 0) -> list[Arrival]:
        """The requests, in order of time; the first comes at once.

        Args:
            vocab: how many token ids there are.
            turn: decides the tokens: of two turns they differ, and the work is the same. No two prompts begin alike.
        """
        random = np.random.default_rng(self.seed)
        times = np.cumsum(random.exponential(1 / self.rate, self.count))
        lengths = [random.integers(of.least, of.most + 1, self.count) for of in (self.prompts, self.answers)]
        return [
            Arrival(float(at - times[0]), random_tokens(int(prompt), vocab, 1_000_000 * turn + number), int(tokens))
            for number, (at, prompt, tokens) in enumerate(zip(times, *lengths, strict=True))
        ]


def total_tokens(arrivals: Sequence[Arrival]) -> int:
    """Tokens of all prompts and answers."""
    return sum(len(arrival.prompt) + arrival.tokens for arrival in arrivals)
