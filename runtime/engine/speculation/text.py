"""A text as proposers see it."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple


class Text(NamedTuple):
    """The text of a request that speculates.

    Attributes:
        key: whose text it is; the same for each step.
        tokens: prompt and answer so far. It only grows.
        most: how many more tokens may be guessed now.
    """

    key: Hashable
    tokens: Sequence[int]
    most: int
