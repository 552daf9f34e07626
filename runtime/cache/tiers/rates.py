"""Measured rates, by which the engine decides whether a block is read or computed again."""

from mlxr.runtime.cache.tiers.fetch import TIERS

_KEPT = 0.9
"""How much an earlier measurement counts after the next one."""
_TRIES = 32


class Rate:
    """An amount per second, as a moving average in which large measurements count for more."""

    def __init__(self) -> None:
        """Begins without a measurement."""
        self._amount = self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Adds a measurement."""
        self._amount = self._amount * _KEPT + amount
        self._seconds = self._seconds * _KEPT + seconds

    @property
    def per_second(self) -> float:
        """The average; 0 before the first measurement."""
        return self._amount / self._seconds if self._seconds else 0.0


class Worth:
    """Compares reading with computing.

    Attributes:
        computing: tokens per second.
        reading: bytes per second, by the name of the tier.
    """

    def __init__(self) -> None:
        """Begins without measurements: until there are some, reading is taken to be cheaper."""
        self.computing = Rate()
        self.reading = {tier: Rate() for tier in TIERS}
        self._refused = 0

    def __call__(self, num_tokens: int, num_bytes: int, from_disk: bool) -> bool:
        """Whether reading so many bytes takes less time than computing the tokens that they stand for.

        One in 32 refusals in a row is not made: that reading was slow for a moment would otherwise never be forgotten.
        """
        bytes_per_second = self.reading["disk" if from_disk else "memory"].per_second
        tokens_per_second = self.computing.per_second
        if not bytes_per_second or not tokens_per_second:
            return True
        if num_bytes / bytes_per_second < num_tokens / tokens_per_second or self._refused == _TRIES - 1:
            self._refused = 0
            return True
        self._refused += 1
        return False
