"""mlx-lm as an engine, on MLX's CPU device. It is slow there: decoding stops after some seconds."""

import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from peers.worker import Engine, random_tokens, serve

_QUANTISED = {"q8_0": (32, 8), "q4_0": (32, 4), "q4_k_m": (64, 4), "affine4": (64, 4)}
"""Group and bits of the nearest format of MLX's own."""
_MOST_SECONDS = 8.0


class MlxLm(Engine):
    """A loaded model; each measurement starts with an empty cache."""

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Loads the bf16 folder, and quantises it to MLX's format with as many bits."""
        mx.set_default_device(mx.cpu)
        self._model, config = load_model(Path(options["folder"]))
        if options["format"] in _QUANTISED:
            group_size, bits = _QUANTISED[options["format"]]
            nn.quantize(self._model, group_size=group_size, bits=bits)
        mx.eval(self._model.parameters())
        self._vocab = config["vocab_size"]
        return {"version": f"mlx {mx.__version__}"}

    def _fill(self, tokens: int) -> Any:
        cache = make_prompt_cache(self._model)
        logits = self._model(mx.array([random_tokens(tokens, self._vocab)]), cache=cache)
        mx.eval(logits[:, -1])
        return cache

    def prefill(self, tokens: int) -> float:
        """See Engine."""
        start = time.perf_counter()
        self._fill(tokens)
        return time.perf_counter() - start

    def decode(self, context: int, batch: int, tokens: int) -> tuple[float, int]:
        """See Engine; one sequence only."""
        assert batch == 1, "one sequence only"
        cache = self._fill(context)
        ids = random_tokens(tokens, self._vocab, seed=99)
        start = time.perf_counter()
        for step, token in enumerate(ids, 1):
            mx.eval(self._model(mx.array([[token]]), cache=cache))
            if time.perf_counter() - start > _MOST_SECONDS:
                return time.perf_counter() - start, step
        return time.perf_counter() - start, tokens

    def first_token(self) -> None:
        """See Engine."""
        self._fill(5)


if __name__ == "__main__":
    serve(MlxLm())
