"""How long guesses take, measured while they are made."""

from collections import deque

_SAMPLES = 9
_LEAST = 3
"""Fewer times of first guesses say nothing: the first ones of all wait for pages of the weights."""


class GuessCosts:
    """What the first guess of texts takes, with all that it takes to begin, and what each further one.

    It is the least of the newest times: disturbances only slow them down.
    """

    def __init__(self) -> None:
        self._firsts: deque[float] = deque(maxlen=_SAMPLES)
        self._furthers: deque[float] = deque(maxlen=_SAMPLES)
        self._first = self._further = 0.0

    def measured(self, seconds: float, steps: int, later: float) -> None:
        """Takes the time of drafts that were made together.

        Args:
            seconds: all of it.
            steps: guesses of the longest of them.
            later: the part of the time that the steps after the first took.
        """
        if steps > 1:
            self._furthers.append(later / (steps - 1))
            self._further = min(self._furthers)
        self._firsts.append(seconds - later)
        self._first = min(self._firsts) if len(self._firsts) >= _LEAST else self._further

    def seconds(self, guesses: int) -> float:
        """What so many guesses of each text take; little is asked of what is not known, so that it is tried."""
        return self._first + (guesses - 1) * self._further if guesses else 0.0
