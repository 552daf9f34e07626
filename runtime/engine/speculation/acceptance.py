"""How often guesses about one text come true, by their place in a draft."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

_KEPT = 0.9
"""What an observation still weighs when the next draft has been tried: some ten drafts count."""
_PRIOR = 0.5
"""Weight of the first opinion, of the chance that a guess comes true."""


class Acceptance:
    """Moving averages: the chance that a guess comes true, once those before it in the draft have.

    What was seen of later guesses fades while drafts are too short for them, so that they are tried again; until they
    are, they are thought to be no better than those before.
    """

    def __init__(self, hope: float = 0.5) -> None:
        """Nothing is known.

        Args:
            hope: the first opinion.
        """
        self._hope = hope
        self._right: list[float] = []
        self._tried: list[float] = []
        self._chances: list[float] = []

    @property
    def is_tried(self) -> bool:
        """Whether anything was observed."""
        return bool(self._tried)

    def copy(self) -> "Acceptance":
        """The same, to go on by itself."""
        copy = Acceptance(self._hope)
        copy._right, copy._tried = [*self._right], [*self._tried]
        return copy

    def observe(self, place: int, is_right: bool) -> None:
        """Takes what became of a guess.

        Args:
            place: 0 for the first of a draft; those before it were right.
            is_right: whether the text went on with it.
        """
        while len(self._tried) <= place:
            self._right.append(0.0)
            self._tried.append(0.0)
        if place == 0:
            self._right = [_KEPT * right for right in self._right]
            self._tried = [_KEPT * tried for tried in self._tried]
        self._right[place] += is_right
        self._tried[place] += 1
        self._chances = []

    def chances(self, most: int) -> Sequence[float]:
        """For each of so many guesses, the chance that it is accepted: it and all before it are right."""
        if len(self._chances) < most:
            unknown = [(0.0, 0.0)] * (most - len(self._tried))
            hope, each = self._hope, []
            for right, tried in [*zip(self._right, self._tried, strict=True), *unknown]:
                each.append((right + _PRIOR * hope) / (tried + _PRIOR))
                hope = min(self._hope, each[-1])
            self._chances = list(accumulate(each, mul))
        return self._chances[:most]
