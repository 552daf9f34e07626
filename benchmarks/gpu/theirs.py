"""mlx-lm as an engine, on the default device: its model, its cache, and the loop of its `generate_step`.

Its cache is filled with random keys and values, and has room for all that is decoded, so that no step has to enlarge
it.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.generate import generate_step
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache
from peers.models import Shape
from peers.worker import random_tokens

from gpu.ours import WARM_UP
from gpu.weights import RandomWeights, pattern
from gpu.work import GROWTH, Row, mlx_lm_config

_STEP = 2048
"""Tokens of a prompt that mlx-lm reads at once."""


def make_model(name: str, weights: RandomWeights) -> nn.Module:
    """mlx-lm's model on these weights. The weights that it first makes itself are never computed."""
    model = llama.Model(llama.ModelArgs.from_dict(mlx_lm_config(name, 8192)))
    if weights.format != "bf16":
        nn.quantize(model, group_size=64, bits=4)
    model.load_weights(weights.mlx_lm_arrays(), strict=True)
    model.eval()
    mx.eval(model.parameters())
    return model


def _filled_cache(model: nn.Module, shape: Shape, batch: int, tokens: int) -> list[Any]:
    caches = make_prompt_cache(model)
    room = -(-(tokens + GROWTH + 16) // 256) * 256
    dims = (batch, shape.kv_heads, room, shape.head_dim)
    for index, cache in enumerate(caches):
        keys, values = (mx.contiguous(pattern(int(np.prod(dims)), 2 * index + i).reshape(dims)) for i in (0, 1))
        mx.eval(keys, values)
        cache.state = (keys, values, tokens)
    return caches


class Theirs:
    """One row's measurements of mlx-lm."""

    def __init__(self, row: Row, model: nn.Module, shape: Shape) -> None:
        """Fills no cache yet.

        Args:
            row: what will be measured.
            model: mlx-lm's.
            shape: its dimensions.
        """
        self._row, self._model, self._shape = row, model, shape
        self._tokens: Iterator[Any] | None = None
        self._left = 0
        self._step: int | None = None

    def decode(self, steps: int) -> float:
        """Seconds of a step, averaged over `steps`."""
        if self._left < steps + WARM_UP:
            self._restart()
        assert self._tokens is not None, "just started"
        for _ in range(WARM_UP):
            next(self._tokens)
        start = time.perf_counter()
        for _ in range(steps):
            next(self._tokens)
        seconds = time.perf_counter() - start
        self._left -= steps + WARM_UP
        return seconds / steps

    def _restart(self) -> None:
        self.close()
        batch, vocab = self._row.batch, self._shape.vocab
        cache = _filled_cache(self._model, self._shape, batch, self._row.tokens)
        first = mx.array(random_tokens(batch, vocab))
        if batch == 1:
            self._tokens = generate_step(first, self._model, max_tokens=-1, prompt_cache=cache)
        else:
            self._tokens = self._decode_together(first, cache)
        next(self._tokens)
        self._left = GROWTH - 1

    def _decode_together(self, first: mx.array, cache: list[Any]) -> Iterator[list[int]]:
        """As `generate_step`, for several sequences, and without log-probabilities, which nobody needs."""

        def step(tokens: mx.array) -> mx.array:
            chosen = mx.argmax(self._model(tokens[:, None], cache=cache)[:, -1], axis=-1)
            mx.async_eval(chosen)
            return chosen

        now = step(first)
        while True:
            after = step(now)
            yield now.tolist()
            now = after

    def prefill(self) -> float:
        """Seconds from a prompt to its first token, in one piece or in mlx-lm's pieces, whichever was faster at first.

        `generate_step` reads the last token in a step of its own; here it is read with the others, which is faster.
        """
        prompt = random_tokens(self._row.tokens, self._shape.vocab)
        if self._step is None:
            for step in {self._row.tokens, min(_STEP, self._row.tokens)}:  # untimed: the first run builds
                self._prefill(prompt, step)
            tried = {step: self._prefill(prompt, step) for step in (_STEP, self._row.tokens)}
            self._step = min(tried, key=lambda step: tried[step])
        return self._prefill(prompt, self._step)

    def _prefill(self, prompt: Sequence[int], step: int) -> float:
        start = time.perf_counter()
        tokens, cache = mx.array(prompt)[None], make_prompt_cache(self._model)
        hidden = mx.zeros((1, 1, 1))
        for at in range(0, len(prompt), step):
            hidden = self._model.model(tokens[:, at : at + step], cache)
            mx.async_eval([layer.state[:2] for layer in cache])
        mx.argmax(self._model.lm_head(hidden[:, -1]), axis=-1).item()
        return time.perf_counter() - start

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits after the last of a few tokens: [vocab] f32."""
        logits = self._model(mx.array([list(tokens)]), cache=make_prompt_cache(self._model))[0, -1]
        return np.array(logits.astype(mx.float32))

    def close(self) -> None:
        """Frees the cache."""
        self._tokens, self._left = None, 0
