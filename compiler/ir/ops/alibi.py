"""Biases of scores by distance (ALiBi): a key counts less the further it is from the query, in each head by a slope."""

from dataclasses import dataclass

from mlxr.compiler.ir.checks import require, require_positive


@dataclass(frozen=True)
class Alibi:
    """The slopes of heads.

    Source: "Train Short, Test Long" (Press et al. 2021), whose exponent is 8. Where the number of heads is no power of
    two, those beyond the next lower one have slopes between the others', as in BLOOM, MPT and Baichuan.

    Attributes:
        exponent: the last head's slope is 2 to minus this power, where the heads are a power of two.
        heads: the whole model's heads.
        first: the first of them that is meant.
    """

    exponent: float
    heads: int
    first: int

    def check(self, count: int) -> None:
        """Raises RuleError unless there are slopes of this many heads."""
        require_positive("alibi", self.exponent)
        last = self.first + count
        require(0 <= self.first < last <= self.heads, f"heads {self.first} to {last - 1} of {self.heads} have slopes")

    def slopes(self, count: int) -> tuple[float, ...]:
        """The slopes of so many heads: a score is less by its head's times the distance of key and query."""
        return tuple(self._slope(head) for head in range(self.first, self.first + count))

    def _slope(self, head: int) -> float:
        whole = 1 << (self.heads.bit_length() - 1)
        steps = 2 * (head + 1) if head < whole else 2 * (head - whole) + 1
        return float(2 ** (-self.exponent * steps / (2 * whole)))
