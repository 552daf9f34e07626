"""llama.cpp as an engine, through the low-level calls of llama-cpp-python.

Two contexts share the model, each with the settings that are best for it: one sequence of full context, and several
short sequences with a cache each. Prompts go in batches of 512.
"""

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp as api

from peers.worker import Engine, random_tokens, serve

_BATCH = 512
_SHORT = 160
"""Context of each sequence where there are several."""


class LlamaCpp(Engine):
    """A model and its contexts."""

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Loads the GGUF file, mapped, with llama.cpp's own choice of weight repacking."""
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(options["source"].encode(), api.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"cannot load {options['source']}")
        self._vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._threads = options["threads"]
        flash = options.get("flash", True)
        self._flash = api.LLAMA_FLASH_ATTN_TYPE_AUTO if flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._options = options
        self._contexts: dict[int, Any] = {}
        self._lengths: dict[int, int] = {}
        self._rows = api.llama_batch_init(_BATCH, 0, 1)
        self._context(1)
        return {"version": f"llama-cpp-python {api.__version__}", "built_for": api.llama_print_system_info().decode()}

    def _context(self, batch: int) -> Any:
        if batch not in self._contexts:
            settings = api.llama_context_default_params()
            settings.n_ctx = self._options["context"] if batch == 1 else batch * _SHORT
            settings.n_batch = settings.n_ubatch = _BATCH
            settings.n_seq_max = batch
            settings.n_threads = settings.n_threads_batch = self._threads
            settings.flash_attn_type = self._flash
            self._contexts[batch] = api.llama_init_from_model(self._model, settings)
            if not self._contexts[batch]:
                raise RuntimeError(f"no context of {settings.n_ctx} tokens")
            self._lengths[batch] = 0
        return self._contexts[batch]

    def _step(self, batch: int, tokens: Sequence[tuple[int, int, int, bool]]) -> None:
        """Runs tokens, given as (id, position, sequence, whether its logits are wanted)."""
        rows = self._rows
        rows.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            rows.token[i] = token
            rows.pos[i] = position
            rows.n_seq_id[i] = 1
            rows.seq_id[i][0] = sequence
            rows.logits[i] = wanted
        context = self._contexts[batch]
        if api.llama_decode(context, rows):
            raise RuntimeError("llama_decode failed")
        api.llama_synchronize(context)

    def _fill(self, batch: int, length: int) -> None:
        """Cuts or continues every sequence to `length` tokens."""
        memory = api.llama_get_memory(self._context(batch))
        start = min(self._lengths[batch], length)
        if start == 0:
            api.llama_memory_clear(memory, False)
        for sequence in range(batch):
            api.llama_memory_seq_rm(memory, sequence, start, -1)
            ids = random_tokens(length, self._vocab, seed=sequence)
            for first in range(start, length, _BATCH):
                last = min(first + _BATCH, length)
                chunk = [(ids[p], p, sequence, p == length - 1) for p in range(first, last)]
                self._step(batch, chunk)
        self._lengths[batch] = length

    def prefill(self, tokens: int) -> float:
        """See Engine."""
        self._lengths[1] = 0
        start = time.perf_counter()
        self._fill(1, tokens)
        return time.perf_counter() - start

    def decode(self, context: int, batch: int, tokens: int) -> tuple[float, int]:
        """See Engine."""
        self._context(batch)
        self._fill(batch, context)
        ids = random_tokens(tokens * batch, self._vocab, seed=99)
        start = time.perf_counter()
        for step in range(tokens):
            self._step(batch, [(ids[step * batch + s], context + step, s, True) for s in range(batch)])
        seconds = time.perf_counter() - start
        self._lengths[batch] = context + tokens
        return seconds, tokens

    def first_token(self) -> None:
        """See Engine."""
        self._fill(1, 5)
        logits = api.llama_get_logits_ith(self._contexts[1], -1)
        values = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self._vocab)).contents
        max(range(self._vocab), key=values.__getitem__)


if __name__ == "__main__":
    serve(LlamaCpp())
