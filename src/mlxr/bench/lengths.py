"""Lengths of prompts that a process has not seen, drawn at random from a range, as users' prompts have them.

For a length that comes again, kernels, traces or plans may exist already; for a new length they do not.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mlxr.compiler.errors import RequestError


@dataclass(frozen=True)
class LengthRange:
    """Lengths from `least` to `most`, both included."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str, option: str = "--lengths") -> "LengthRange":
        """A range as text: `300-700`.

        Args:
            text: the range.
            option: what error messages call it.

        Raises:
            RequestError: it is not a range of lengths.
        """
        match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text, re.ASCII)
        if not match:
            raise RequestError(f"{option} is {text!r}; expected the shortest and the longest prompt, 300-700 say")
        least, most = int(match[1]), int(match[2])
        if least < 1:
            raise RequestError(f"{option} is {text}; a prompt has at least 1 token")
        if least > most:
            raise RequestError(f"{option} is {text}; expected the smaller number first: {most}-{least}")
        return cls(least, most)

    def __str__(self) -> str:
        """The range as text, as `parse` takes it."""
        return f"{self.least}-{self.most}"


class UnseenLengths:
    """Gives each length at most once."""

    def __init__(self, seed: int = 1, seen: Iterable[int] = ()) -> None:
        """Begins with no length given yet.

        Args:
            seed: the same seed gives the same lengths.
            seen: further lengths that must not be given.
        """
        self._random = np.random.default_rng(seed)
        self._seen = set(seen)

    def take(self, within: LengthRange, count: int, option: str = "--lengths") -> list[int]:
        """Gives so many lengths of a range, in random order.

        Args:
            within: the range.
            count: how many.
            option: what error messages call the range.

        Raises:
            RequestError: fewer are left.
        """
        left = [length for length in range(within.least, within.most + 1) if length not in self._seen]
        if count > len(left):
            raise RequestError(
                f"{option} is {within}, which has {len(left)} lengths that were not used yet; {count} are needed: "
                "give a wider range, or ask for fewer prompts"
            )
        taken = [int(length) for length in self._random.choice(left, count, replace=False)]
        self._seen.update(taken)
        return taken
