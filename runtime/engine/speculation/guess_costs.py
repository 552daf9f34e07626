"""How long guesses take, measured while they are made."""

from collections import deque

_SAMPLES = 9
_LEAST = 3
"""Fewer times of first guesses say nothing: the first ones of all wait for pages of the weights."""
_DISTURBED = 0.1
"""Where others ran longer than this, of the time, nobody knows how it divides."""


class GuessCosts:
    """What the first guess of texts takes, with all that it takes to begin, and what each further one.

    It is the least of the newest times: disturbances only slow them down.
    """

    def __init__(self) -> None:
        self._firsts: deque[float] = deque(maxlen=_SAMPLES)
        self._furthers: deque[float] = deque(maxlen=_SAMPLES)
        self._reading: deque[float] = deque(maxlen=_SAMPLES)
        self._first = self._further = 0.0

    def measured(self, seconds: float, steps: int, later: float, disturbed: float = 0.0) -> None:
        """Takes the time of drafts that were made together.

        Args:
            seconds: all of it.
            steps: guesses of the longest of them.
            later: the part of the time that the steps after the first took.
            disturbed: how long others ran meanwhile, which is not in `seconds`, but may be in `later`.
        """
        is_disturbed = disturbed > _DISTURBED * seconds
        if is_disturbed and self._furthers:
            later = min(seconds, self._further * (steps - 1))
        elif is_disturbed:
            later *= seconds / (seconds + disturbed)
        if steps > 1:
            self._furthers.append(later / (steps - 1))
            self._further = min(self._furthers)
        self._firsts.append(seconds - later)
        self._first = min(self._firsts) if len(self._firsts) >= _LEAST else self._further

    def has_read(self, tokens: int, seconds: float) -> None:
        """Takes the time in which so many tokens of texts were read, more than one guess asks for."""
        self._reading.append(seconds / tokens)

    def reading(self, tokens: int) -> float:
        """What it takes to read so many tokens."""
        return min(self._reading, default=0.0) * tokens

    def seconds(self, guesses: int) -> float:
        """What so many guesses of each text take; little is asked of what is not known, so that it is tried."""
        return self._first + (guesses - 1) * self._further if guesses else 0.0
