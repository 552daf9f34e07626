"""The number of a test's repetition; random numbers differ in each."""

from collections.abc import Iterator
from contextlib import contextmanager

_number = [0]


@contextmanager
def repetition(number: int) -> Iterator[None]:
    """Makes this the current repetition until the end of the block."""
    _number.append(number)
    try:
        yield
    finally:
        _number.pop()


def varied(seed: int) -> int:
    """A test's seed in this repetition; the first repetition does not change it."""
    return seed + 1_000_003 * _number[-1]
