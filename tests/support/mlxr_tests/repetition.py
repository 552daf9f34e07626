"""Which repetition of a test runs: random numbers differ in each."""

from collections.abc import Iterator
from contextlib import contextmanager

_number = [0]


@contextmanager
def repetition(number: int) -> Iterator[None]:
    """Until the end of the block this repetition runs."""
    _number.append(number)
    try:
        yield
    finally:
        _number.pop()


def varied(seed: int) -> int:
    """A test's seed in this repetition; itself in the first."""
    return seed + 1_000_003 * _number[-1]
