"""A histogram that costs little per observation: only one thread may observe."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString


class Histogram:
    """Counts of values by their size.

    `prometheus_client` has one that takes a lock for each observation, which costs more than all else that the server
    measures of a token.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """Has seen nothing yet.

        Args:
            bounds: the largest value of each bucket but the last, which takes what is larger; in order.
        """
        self._bounds, self._counts = bounds, [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus writes them: each bound, and how many values are at most so large."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
