"""DRY: a penalty for tokens that would continue a repetition, which grows with the length of the repetition.

If the last n tokens of a text are in it a second time, the token that followed them there gets the penalty
multiplier x base ^ (n - allowed_length), for the greatest such n of at least allowed_length. The last n tokens do not
extend over a breaker, and a token whose own text has a breaker gets no penalty.

Source: p-e-w's DRY sampler in text-generation-webui, and llama.cpp's `llama_sampler_dry`, which we follow. We differ in
a breaker of several tokens: for us it ends where its text ends; llama.cpp tokenises it and looks for these tokens.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.sampling.options import Sampling

Ids = npt.NDArray[np.intp]
TokenBytes = Callable[[int], bytes]
_GREATEST = 1e30
"""The greatest penalty: far beyond any logit, and far from the end of f32."""
_LONGEST = 1000
"""Repetitions longer than the allowed length by this count as this long."""


class _Text(NamedTuple):
    """A text, and the repetitions in it.

    Attributes:
        tokens: the last ones of them, as many as count: [n].
        lengths: for each token, how many tokens before it are the last tokens of the text again: [n].
        since_breaker: how many tokens follow the last breaker.
        tail: the last bytes, in which a breaker may have begun.
    """

    tokens: Ids
    lengths: Ids
    since_breaker: int
    tail: bytes


class Dry:
    """The repetitions in the text of one request."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], token_bytes: TokenBytes | None) -> None:
        """Reads the prompt.

        Args:
            sampling: the options.
            prompt: token ids.
            token_bytes: what a token stands for; None without a tokenizer, when there can be no breakers.

        Raises:
            RequestError: there are breakers, and no tokenizer.
        """
        if sampling.dry_breakers and token_bytes is None:
            raise RequestError("dry_breakers need a tokenizer, and the model has none: give dry_breakers=[]")
        self._options = sampling
        self._breakers = [text.encode() for text in sampling.dry_breakers]
        self._token_bytes: TokenBytes = token_bytes or (lambda token: b"")
        growth = math.log(_GREATEST) / math.log(sampling.dry_base) if sampling.dry_base > 1 else 0
        self._longest = sampling.dry_allowed_length + min(_LONGEST, math.ceil(growth))
        self._text = self._read(prompt)

    def accept(self, token: int) -> None:
        """Adds a token of the answer."""
        self._text = self._after(self._text, token)

    def penalties(self, draft: Sequence[int] = ()) -> tuple[Ids, npt.NDArray[np.float32]]:
        """The tokens that would continue a repetition, [n], and what each loses, if the answer goes on with `draft`."""
        text, options = self._text, self._options
        for token in draft:
            text = self._after(text, token)
        lengths = np.minimum(text.lengths, text.since_breaker)
        repeats = np.flatnonzero(lengths >= options.dry_allowed_length)
        ids, which = np.unique(text.tokens[repeats], return_inverse=True)
        longest = np.zeros(len(ids), dtype=np.intp)
        np.maximum.at(longest, which, lengths[repeats])
        growth = np.float64(options.dry_base) ** (longest - options.dry_allowed_length)
        minus = np.minimum(options.dry_multiplier * growth, _GREATEST).astype(np.float32)
        punished = [not any(text in self._token_bytes(token) for text in self._breakers) for token in ids.tolist()]
        return ids[punished], minus[punished]

    def _read(self, prompt: Sequence[int]) -> _Text:
        """The text of a prompt. One token after the other would take time that grows with the square of its length."""
        tokens = np.asarray(prompt, dtype=np.intp)[-self._options.dry_range :]
        since_breaker, tail = 0, b""
        for token in tokens.tolist() if self._breakers else ():
            since_breaker, tail = self._since_breaker(since_breaker, tail, token)
        if not self._breakers:
            since_breaker = len(tokens)
        lengths = np.zeros(len(tokens), dtype=np.intp)
        places = np.arange(len(tokens))  # before which the last `length` tokens are those of the text's end
        for length in range(1, min(self._longest, len(tokens) - 1) + 1):
            places = places[places >= length]
            places = places[tokens[places - length] == tokens[-length]]
            if not len(places):
                break
            lengths[places] = length
        return _Text(tokens, lengths, since_breaker, tail)

    def _after(self, text: _Text, token: int) -> _Text:
        """The text with one more token."""
        most = self._options.dry_range or len(text.tokens) + 1
        lengths = np.where(text.tokens == token, np.minimum(text.lengths + 1, self._longest), 0)
        lengths = np.concatenate([[0], lengths])[-most:]
        lengths = np.minimum(lengths, np.arange(len(lengths)))  # what has left the range repeats nothing
        tokens = np.append(text.tokens, token)[-most:]
        return _Text(tokens, lengths, *self._since_breaker(text.since_breaker, text.tail, token))

    def _since_breaker(self, since_breaker: int, tail: bytes, token: int) -> tuple[int, bytes]:
        """How many tokens follow the last breaker after one more token, and the new tail."""
        if not self._breakers:
            return since_breaker + 1, b""
        text = tail + self._token_bytes(token)
        if any(text.find(breaker, max(0, len(tail) - len(breaker) + 1)) >= 0 for breaker in self._breakers):
            since_breaker = -1
        longest = max(map(len, self._breakers)) - 1
        return since_breaker + 1, text[-longest:] if longest else b""
