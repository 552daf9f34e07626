"""The text of a request that speculates, as those see it who guess how it goes on."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple


class Text(NamedTuple):
    """A text.

    Attributes:
        key: whose text it is; the same for each step.
        tokens: prompt and answer so far. It only grows.
        most: how many more tokens may be guessed now.
        seq_id: its sequence in the model's arena, which has all tokens but the last.
    """

    key: Hashable
    tokens: Sequence[int]
    most: int
    seq_id: int | None = None
