"""mlx-lm as its users run it: `load` on a folder, `stream_generate`, and for several prompts `BatchGenerator`."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm import load, stream_generate
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

from peers.worker import Streamed, User, serve, share_memory, timed

_STEP = 2048
_LEAD = 4


class MlxLmUser(User):
    """A loaded model and its tokenizer, from which end tokens are removed: mlx-lm has no option to ignore them."""

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """See Loader."""
        share_memory(options.get("processes", 1))
        self._model, self._tokenizer = load(options["source"])
        self._tokenizer.eos_token_ids = set()
        return {"version": f"mlx {mx.__version__}", "vocab": len(self._tokenizer)}

    def stream(self, prompts: Sequence[Sequence[int]], tokens: int) -> Streamed:
        """See User."""
        lead = _LEAD * len(prompts) if len(prompts) > 1 else 0
        answer = self._one if len(prompts) == 1 else self._several
        start = time.perf_counter()
        streamed = timed(start, answer(prompts, 1 + tokens + lead), len(prompts), tokens)
        mx.synchronize()  # a step of its pipeline may be under way
        return streamed

    def _one(self, prompts: Sequence[Sequence[int]], tokens: int) -> Iterator[tuple[int, int]]:
        for response in stream_generate(self._model, self._tokenizer, list(prompts[0]), max_tokens=tokens):
            yield 0, response.token

    def _several(self, prompts: Sequence[Sequence[int]], tokens: int) -> Iterator[tuple[int, int]]:
        generator = BatchGenerator(self._model, max_tokens=tokens)
        try:
            place = {uid: index for index, uid in enumerate(generator.insert([list(prompt) for prompt in prompts]))}
            while responses := generator.next_generated():
                yield from ((place[response.uid], response.token) for response in responses)
        finally:
            generator.close()

    def gap(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """See User: all tokens of the answer are read at once, after the prompt."""
        cache = make_prompt_cache(self._model)
        tokens, before = mx.array([[*prompt, *answer[:-1]]]), len(prompt) - 1
        for at in range(0, before, _STEP):
            self._model(tokens[:, at : min(at + _STEP, before)], cache=cache)
            mx.eval([layer.state for layer in cache])
        logits = self._model(tokens[:, before:], cache=cache)[0].astype(mx.float32)
        chosen = mx.take_along_axis(logits, mx.array(answer)[:, None], axis=1)[:, 0]
        gaps = (logits.max(axis=1) - chosen) / mx.std(logits, axis=1)
        gap = float(mx.where(mx.isnan(gaps), mx.inf, gaps).max())
        mx.clear_cache()
        return gap


if __name__ == "__main__":
    serve(MlxLmUser())
