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
from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import HostError, RequestError
from mlxr.runtime.engine.sampling.options import CONSTRAINTS, Sampling

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.intp]

MIN_TEMPERATURE = 1e-30
"""The temperature used for smaller ones above 0, which f32 would round to 0; the result is greedy."""


_NOT_YET = (
    "typical_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry_multiplier",
    "logit_bias",
    "logprobs",
    "prompt_logprobs",
    "min_tokens",
)
_OF_THE_ENGINE = ("stop", "include_stop", "n", "max_tokens", "ignore_eos", *CONSTRAINTS)
_DEFAULT = Sampling()


class Sampler:
    """What choosing the tokens of one request needs to remember: random numbers, and the tokens that were accepted.

    Every token at a temperature above 0 uses exactly one number. It depends only on the seed, on `stream` and on the
    token's position, so a request gives the same tokens whichever others share its batches.

    Attributes:
        sampling: the options.
        needs_tokens: whether the next choice depends on the tokens accepted before it, so that no step can be sampled
            before the tokens of the step before it are read.
    """

    def __init__(
        self,
        sampling: Sampling,
        stream: int = 0,
        prompt: Sequence[int] | None = None,
        stop_ids: Collection[int] = (),
    ) -> None:
        """Keeps the options; the generator is made when the first number is needed.

        Args:
            sampling: the options.
            stream: a number that differs between requests with the same seed, such as several answers to one prompt.
            prompt: token ids of the prompt; None: the caller does not accept tokens, and looks at no option but the
                first five.
            stop_ids: ids that end the answer, which `min_tokens` forbids.

        Raises:
            RequestError: an option that is not implemented.
        """
        missing = _NOT_YET if prompt is not None else (*_NOT_YET, *_OF_THE_ENGINE)
        for name in missing:
            if getattr(sampling, name) != getattr(_DEFAULT, name):
                raise RequestError(f"{name} is not supported yet: leave it out")
        self.sampling = sampling
        self.needs_tokens = False
        self._stream = stream
        self._position = 0
        self._numbers: list[float] = []

    def uniform(self, position: int | None = None) -> float:
        """A random number in [0, 1) for the answer's token `position` (0, 1, ...); None: the one after the last."""
        if position is None:
            position = self._position
        self._position = position + 1
        while len(self._numbers) <= position:
            self._numbers.extend(self._generator.random(64).tolist())
        return self._numbers[position]

    def accept(self, token: int) -> None:
        """Counts a token of the answer."""

    def sample(self, logits: FloatArray) -> int:
        """Chooses a token.

        Args:
            logits: [vocab], f32; -inf for a token that must not come.

        Raises:
            HostError: the row has a NaN or +inf, or nothing but -inf.
        """
        return self.choose(logits, self._position)

    def choose(self, logits: FloatArray, position: int) -> int:
        """Chooses the answer's token `position`; else as `sample`."""
        best, greatest = likeliest(logits)
        if self.sampling.temperature == 0:
            return best
        ids, weights = self._candidates(logits.astype(np.float32, copy=False), greatest)
        return _weighted_choice(ids, weights, self.uniform(position))

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
