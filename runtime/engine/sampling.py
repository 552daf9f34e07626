"""Sampling: one token from one row of logits, on the CPU, reproducibly.

Order: temperature, top-k, top-p (of what top-k left, renormalised), min-p, one draw. This is the order of Hugging Face
transformers. mlx-lm (top-p, min-p, top-k, temperature) and llama.cpp (top-k, top-p, min-p, temperature, by default)
filter at temperature 1 and scale what is left, so there a high temperature never lets more tokens through; here top-p
and min-p apply to the distribution that is sampled. At temperature 1 and with one filter, all of these agree.

Definitions, for probabilities p after the temperature; of equal tokens the lower id comes first:

* top-k: exactly the k most probable tokens;
* top-p: the smallest set of most probable tokens whose sum reaches top_p, hence at least one;
* min-p: the tokens with p >= min_p * max(p).
"""

import math
import numbers
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import HostError, RequestError

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.intp]

MIN_TEMPERATURE = 1e-30
"""The temperature used for smaller ones above 0, which f32 would round to 0; the result is greedy."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Raises:
        TypeError: an option of a wrong type.
        RequestError: an option outside its range.
    """

    temperature: float = 0.0
    """0 takes the most probable token and ignores the rest; 1 samples the model's own distribution. 0 to 100."""
    top_k: int = 0
    """Only the k most probable tokens; 0 for all."""
    top_p: float = 1.0
    """Only the most probable tokens that together have this probability; more than 0, at most 1 (all)."""
    min_p: float = 0.0
    """Only tokens with at least this share of the greatest probability; 0 (all) to 1."""
    seed: int | None = None
    """The same seed gives the same tokens; None for a new one each time."""

    def __post_init__(self) -> None:
        """Checks every option."""
        _check_number("temperature", self.temperature, 0, 100, "a number from 0 (greedy) to 100")
        _check_whole("top_k", self.top_k, 2**31 - 1, "a whole number, 0 (all tokens) or more")
        _check_number("top_p", self.top_p, math.ulp(0.0), 1, "a number greater than 0 and at most 1 (all tokens)")
        _check_number("min_p", self.min_p, 0, 1, "a number from 0 (all tokens) to 1")
        if self.seed is not None:
            _check_whole("seed", self.seed, 2**64 - 1, "a whole number from 0 to 2^64 - 1, or none")


class Sampler:
    """Samples the tokens of one sequence; owns a generator of random numbers.

    Every `sample` at a temperature above 0 uses exactly one number. A number depends only on the seed, on `stream` and
    on how many came before, so a sequence gives the same tokens whichever others share its batches.
    """

    def __init__(self, sampling: Sampling, stream: int = 0) -> None:
        """Keeps the options; the generator is made when the first number is needed.

        Args:
            sampling: the options.
            stream: a number that differs between sequences with the same seed, such as several answers to one prompt.
        """
        self.sampling = sampling
        self._stream = stream

    def sample(self, logits: FloatArray) -> int:
        """Chooses a token.

        Args:
            logits: [vocab], f32; -inf for a token that must not come.

        Raises:
            HostError: the row has a NaN or +inf, or nothing but -inf.
        """
        best, greatest = likeliest(logits)
        if self.sampling.temperature == 0:
            return best
        ids, weights = self._candidates(logits.astype(np.float32, copy=False), greatest)
        return _weighted_choice(ids, weights, self.uniform())

    def uniform(self) -> float:
        """The stream's next number, in [0, 1). Sampling on the device uses one for each token, as `sample` does."""
        return float(self._generator.random())

    @cached_property
    def _generator(self) -> np.random.Generator:
        seed = np.random.SeedSequence(self.sampling.seed, spawn_key=(self._stream,))
        return np.random.Generator(np.random.Philox(seed))

    def _candidates(self, logits: FloatArray, greatest: float) -> tuple[IdArray | None, FloatArray]:
        # Ids (None for all) in ascending order, and their probabilities relative to the greatest, which is 1.
        options = self.sampling
        ids = None if options.top_k == 0 or options.top_k >= logits.size else _largest(logits, options.top_k)
        with np.errstate(over="ignore"):  # beyond f32 is -inf, whose probability is 0 as it should be
            scaled = (logits if ids is None else logits[ids]) - np.float32(greatest)
            scaled /= np.float32(max(options.temperature, MIN_TEMPERATURE))
        weights = np.exp(scaled, out=scaled)
        if options.top_p < 1:
            ids, weights = _select(ids, weights, _nucleus(weights, options.top_p))
        if options.min_p > 0:
            ids, weights = _select(ids, weights, np.flatnonzero(weights >= np.float32(options.min_p)))
        return ids, weights


def likeliest(logits: FloatArray) -> tuple[int, float]:
    """The most probable token, the first of equal ones, and its logit.

    Args:
        logits: [vocab], f32.

    Raises:
        HostError: the row has a NaN or +inf, or nothing but -inf.
    """
    assert logits.ndim == 1 and logits.size, f"expected one row of logits, got shape {logits.shape}"
    best = int(np.argmax(logits))  # the first NaN if there is one, else the lowest index of the maximum
    greatest = float(logits[best])
    if not math.isfinite(greatest):
        what = {math.inf: "an infinite logit", -math.inf: "only -inf logits"}.get(greatest, "a NaN logit")
        raise HostError(
            f"the model produced {what} (token {best} of {logits.size}); the weights do not fit the artifact, "
            "or its activations overflow (try --activations f32, or activation_dtype f32 in the spec)"
        )
    return best, greatest


def _select(ids: IdArray | None, weights: FloatArray, kept: IdArray) -> tuple[IdArray, FloatArray]:
    return kept if ids is None else ids[kept], weights[kept]


def _largest(values: FloatArray, count: int) -> IdArray:
    """Ascending indices of the `count` largest values, lower index first among equals; in linear time."""
    return _first_from(values, np.partition(values, values.size - count)[values.size - count], count)


def _first_from(values: FloatArray, smallest: np.float32, count: int) -> IdArray:
    """Ascending indices of the `count` largest values, of which `smallest` is the least."""
    kept = values > smallest
    kept[np.flatnonzero(values == smallest)[: count - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def _nucleus(weights: FloatArray, top_p: float) -> IdArray:
    """Ascending indices of the smallest set of largest weights whose sum reaches top_p of the whole.

    Only as many weights are ordered as the nucleus may need: most nuclei are small.
    """
    target = top_p * float(weights.sum(dtype=np.float64))
    count = min(1024, weights.size)
    while True:
        head = np.sort(np.partition(weights, weights.size - count)[weights.size - count :])[::-1]
        sums = np.cumsum(head, dtype=np.float64)
        if sums[-1] >= target or count == weights.size:
            last = min(int(np.searchsorted(sums, target)), weights.size - 1)
            return _first_from(weights, head[last], last + 1)
        count = min(16 * count, weights.size)


def _weighted_choice(ids: IdArray | None, weights: FloatArray, uniform: float) -> int:
    sums = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
    # uniform < 1, but the product may round up to the total: then the last token with any weight.
    index = min(index, int(np.searchsorted(sums, sums[-1])))
    return index if ids is None else int(ids[index])


def _check_number(name: str, value: float, low: float, high: float, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}, expected {expected}")
    if not low <= value <= high:
        raise RequestError(f"{name} is {value!r}, expected {expected}")


def _check_whole(name: str, value: int, high: int, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is {value!r}, expected {expected}")
    if not 0 <= value <= high:
        raise RequestError(f"{name} is {value!r}, expected {expected}")
