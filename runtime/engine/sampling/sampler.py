"""What goes into the choice of tokens besides logits, and what comes out.

A `Sampler` remembers what the tokens of one request need: its random numbers, and the tokens it has seen. Of each row
of logits, a `Row` goes in, and a `Sampled` token comes out.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.engine.sampling.dry import Dry, TokenBytes
from mlxr.runtime.engine.sampling.options import Sampling
from mlxr.runtime.engine.sampling.seen_tokens import SeenTokens
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

MIN_TEMPERATURE = 1e-30
"""The temperature used for smaller ones above 0, which f32 would round to 0; the result is greedy."""
_OF_ACCEPTED_TOKENS = ("repetition_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier")
_DEFAULT = Sampling()
_NO_NUMBERS = np.zeros(0)
_FEWEST_NUMBERS = 64
"""Random numbers that are made together; later as many as there are, so that few calls make many."""

SparseNumbers = tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]
"""Token ids, and a number for each: [n], intp, and [n], f32."""


class Kind(NamedTuple):
    """Which filters a request uses. Rows of one kind are sampled together."""

    greedy: bool
    min_p: bool
    top_k: bool
    typical_p: bool
    top_p: bool


class Sampler:
    """The state of one request.

    A token at a temperature above 0 uses exactly one random number. It depends only on the seed, on `stream` and on the
    token's position. So a request gives the same tokens whichever others share its batches, and however often a
    position is sampled.

    Attributes:
        sampling: the options.
        needs_tokens: whether the next choice depends on the tokens accepted before it, so that no step can be sampled
            before the tokens of the step before it are read.
        is_plain: whether the logits are taken as they are: no bias, no penalty, no minimum length.
        kind: which filters it uses.
        filters: temperature, min_p, top_k, typical_p, top_p.
        asks_logprobs: whether to tell the log probabilities of its tokens.
        takes_greatest: whether its token is that of the greatest logit, and nothing else is asked for.
        tops: how many of the greatest logits are all that its token depends on (of equal ones, the lower ids); 0: all
            logits. Min-p needs the greatest one and comes before top-k; what comes after top-k sees no others.
        stop_ids: ids that end the answer.
    """

    def __init__(
        self,
        sampling: Sampling,
        stream: int = 0,
        prompt: Sequence[int] = (),
        stop_ids: Collection[int] = (),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Reads the prompt; the random numbers are made when the first one is needed.

        Args:
            sampling: the options.
            stream: a number that differs between requests with the same seed, such as several answers to one prompt.
            prompt: token ids of the prompt.
            stop_ids: ids that end the answer, which `min_tokens` forbids.
            tokenizer: says where DRY's breakers are.

        Raises:
            RequestError: an option that needs a tokenizer.
        """
        self.sampling = sampling
        self.needs_tokens = any(getattr(sampling, name) != getattr(_DEFAULT, name) for name in _OF_ACCEPTED_TOKENS)
        self.is_plain = not (self.needs_tokens or sampling.logit_bias or sampling.min_tokens)
        self.kind = _kind(sampling)
        temperature = max(sampling.temperature, MIN_TEMPERATURE)
        self.filters = (temperature, sampling.min_p, sampling.top_k, sampling.typical_p, sampling.top_p)
        self.asks_logprobs = sampling.logprobs is not None
        self.takes_greatest = self.kind.greedy and self.is_plain and not self.asks_logprobs
        is_top_k = self.kind.top_k and self.is_plain and not self.asks_logprobs
        self.tops = 1 if self.takes_greatest else sampling.top_k if is_top_k else 0
        self.stop_ids = np.array(sorted(stop_ids), dtype=np.intp)
        self._stream = stream
        self._numbers = _NO_NUMBERS
        self._seen: SeenTokens | None = None
        if sampling.repetition_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty:
            self._seen = SeenTokens(prompt if sampling.repetition_penalty != 1 else ())
        self._recent: deque[int] | None = None
        if sampling.repetition_penalty != 1 and sampling.repetition_range:
            self._recent = deque(prompt, maxlen=sampling.repetition_range)
        self._dry = Dry(sampling, prompt, _bytes_of(tokenizer)) if sampling.dry_multiplier else None

    def uniform(self, position: int) -> float:
        """A random number in [0, 1) for the answer's token `position` (0, 1, ...)."""
        return self.uniforms(position, 1).item()

    def uniforms(self, position: int, count: int) -> npt.NDArray[np.float64]:
        """The random numbers of so many tokens from `position` on: [count]."""
        if (more := position + count - len(self._numbers)) > 0:
            made = self._generator.random(max(_FEWEST_NUMBERS, len(self._numbers), more))
            self._numbers = np.concatenate([self._numbers, made])
        return self._numbers[position : position + count]

    @cached_property
    def _generator(self) -> "np.random.Generator":  # quoted: NumPy imports it when it is named
        seed = np.random.SeedSequence(self.sampling.seed, spawn_key=(self._stream,))
        return np.random.Generator(np.random.Philox(seed))

    def accept(self, token: int) -> None:
        """Adds a token of the answer."""
        if self._seen:
            self._seen.accept(token)
        if self._recent is not None:
            self._recent.append(token)
        if self._dry:
            self._dry.accept(token)

    def is_below_minimum(self, position: int) -> bool:
        """Whether the answer's token `position` must not end the answer."""
        return position < self.sampling.min_tokens

    @cached_property
    def bias(self) -> SparseNumbers:
        """What is added to logits."""
        return self._sparse(self.sampling.logit_bias)

    @cached_property
    def bias_below_minimum(self) -> SparseNumbers:
        """What is added to logits where the answer must not end: -inf to those that would end it."""
        return self._sparse({**self.sampling.logit_bias, **dict.fromkeys(self.stop_ids.tolist(), -np.inf)})

    def penalties(self, draft: Sequence[int]) -> list[tuple[SparseNumbers, float]]:
        """Distinct tokens with what each loses, and the repetition penalty of all of them: no token comes twice."""
        if self._seen is None:
            return []
        ids, counts = self._seen.after(draft)
        minus = counts * np.float32(self.sampling.frequency_penalty)
        minus += (counts > 0) * np.float32(self.sampling.presence_penalty)
        if self._recent is None:
            return [((ids, minus), self.sampling.repetition_penalty)]
        recent = np.isin(ids, [*self._recent, *draft][-self.sampling.repetition_range :])
        return [
            ((ids[recent], minus[recent]), self.sampling.repetition_penalty),
            ((ids[~recent], minus[~recent]), 1.0),
        ]

    def dry(self, draft: Sequence[int]) -> SparseNumbers | None:
        """The tokens that would continue a repetition, and what each loses; None without DRY."""
        return self._dry.penalties(draft) if self._dry else None

    @staticmethod
    def _sparse(numbers: Mapping[int, float]) -> SparseNumbers:
        ids = np.fromiter(numbers, dtype=np.intp, count=len(numbers))
        return ids, np.fromiter(numbers.values(), dtype=np.float32, count=len(numbers))


def _bytes_of(tokenizer: Tokenizer | None) -> TokenBytes | None:
    """What gives the bytes of a token; a model's vocabulary may be larger than its tokenizer's."""
    if tokenizer is None:
        return None
    return lambda token: tokenizer.bytes_of(token) if token < tokenizer.vocab_size else b""


def _kind(sampling: Sampling) -> Kind:
    if sampling.is_greedy:
        return Kind(True, False, False, False, False)
    return Kind(False, sampling.min_p > 0, sampling.top_k > 0, sampling.typical_p < 1, sampling.top_p < 1)


@dataclass(slots=True)
class Row:
    """What is needed besides its logits to choose the token of a row.

    Attributes:
        sampler: of the request.
        position: which token of the answer it is, from 0.
        mask: the tokens that may come, a bit each, the lowest bit first: int32 [ceil(vocab / 32)]; None: all.
        draft: tokens that this row takes as accepted, after those that `sampler` has accepted.
    """

    sampler: Sampler
    position: int
    mask: npt.NDArray[np.int32] | None = None
    draft: Sequence[int] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the logits are taken as they are: no mask, no bias and no penalty."""
        return self.mask is None and self.sampler.is_plain


@dataclass(slots=True)
class Sampled:
    """The token of a row.

    Attributes:
        token: its id.
        logprob: its log probability by the logits as the model gave them; None where nobody asked.
        top: ids and log probabilities of the most probable tokens, as many as were asked for.
        error: why there is no token: the row has a NaN or +inf, or nothing but -inf. `token` is 0 then.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: MlxrError | None = None


def allowed(mask: npt.NDArray[np.int32], vocab_size: int) -> npt.NDArray[np.bool_]:
    """The bits of a mask: [vocab], bool."""
    return np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little").view(np.bool_)
