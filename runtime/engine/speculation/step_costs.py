"""How long steps of few tokens take, measured while they run."""

from collections import deque

_SAMPLES = 9
_LEAST = 3
"""Fewer measurements say nothing: all of them may have been disturbed."""
_LIFETIME = 250
"""Steps after which a measurement no longer counts: contexts grow, other programs come and go, first steps are slow."""
_SLOPE = 0.05
"""What a further token is thought to cost, of a step, before it has been measured: little, so that it is tried."""
_LEAST_SLOPE = 0.01
"""What it costs at least: a measurement that says less is noise."""


class StepCosts:
    """The least of the newest measurements, for each number of tokens in a step: disturbances only slow a step down."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._least: dict[int, float] = {}
        self._last: dict[int, int] = {}
        self._steps = 0

    def measured(self, tokens: int, seconds: float) -> None:
        """Takes the time of a step with so many tokens, one or more of each text."""
        self._steps += 1
        if self._steps - self._last.get(tokens, 0) > _LIFETIME:
            self._seconds.pop(tokens, None)
        if (samples := self._seconds.get(tokens)) is None:
            samples = self._seconds[tokens] = deque(maxlen=_SAMPLES)
        samples.append(seconds)
        self._least[tokens] = min(samples)
        self._last[tokens] = self._steps

    def is_known(self, tokens: int) -> bool:
        """Whether the time of a step with so many tokens is known."""
        return self._known(tokens) is not None

    def seconds(self, tokens: int, most: int) -> list[float] | None:
        """Seconds of steps with `tokens`, `tokens + 1`, ... up to `most` tokens; None before the first is known.

        What lies between two known ones is interpolated. They never fall.
        """
        if (base := self._known(tokens)) is None:
            return None
        known: list[tuple[int, float]] = []
        for more in range(most, tokens, -1):
            if (value := self._known(more)) is not None:
                known.append((more, min(value, known[-1][1]) if known else value))  # fewer tokens cost no more
        seconds = [base]
        for more, value in reversed(known):
            rest = more - tokens + 1 - len(seconds)
            self._interpolate(seconds, rest, max(value, seconds[-1] + rest * _LEAST_SLOPE * base))
        rest = most - tokens + 1 - len(seconds)
        self._interpolate(seconds, rest, seconds[-1] + rest * _SLOPE * base)
        return seconds

    def _known(self, tokens: int) -> float | None:
        """Seconds for a number of tokens; None if they are not known, or were measured long ago."""
        samples = self._seconds.get(tokens)
        if samples is None or len(samples) < _LEAST or self._steps - self._last[tokens] > _LIFETIME:
            return None
        return self._least[tokens]

    @staticmethod
    def _interpolate(seconds: list[float], count: int, last: float) -> None:
        first = seconds[-1]
        seconds += [first + (last - first) * i / count for i in range(1, count + 1)]
