"""Sequences of a loaded model that grow together, driven step by step by batches, pager and host, without `Generation`.

Tokens are random and seeded, the logits are read after each step, and no next token is chosen. Hosts that pipeline
differ: there, as in generation, a decode step takes the most probable tokens of the step before, and is launched before
they are read.
"""

import time
from typing import Protocol

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.samples import Samples
from mlxr.runtime.engine.sampling import Row, Sampler, Sampling
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.host import Host


class Running(Protocol):
    """The parts of a model that sequences need."""

    @property
    def artifact(self) -> Artifact:
        """The compiled model."""

    @property
    def host(self) -> Host:
        """The host that runs it."""

    @property
    def pager(self) -> Pager:
        """The pager of the host's arena."""


class Sequences:
    """Sequences of equal length that grow together, with random tokens."""

    def __init__(self, model: Running, count: int) -> None:
        """Takes nothing of the arena until `resize`."""
        self._host, self._pager, self._plan = model.host, model.pager, model.artifact.plan
        self._count = count
        self._ids: list[int] = []
        self._length = 0
        self._random = np.random.default_rng(1)

    def close(self) -> None:
        """Frees the sequences."""
        for seq_id in self._ids:
            self._pager.free(seq_id)
        self._ids, self._length = [], 0

    def restart(self, tokens: int) -> float:
        """Empties all sequences, then fills each with so many tokens. Returns the seconds that the steps took."""
        self.close()
        return self.resize(tokens)

    def resize(self, tokens: int) -> float:
        """Cuts or continues each sequence to so many tokens. Returns the seconds that the steps took."""
        if not self._ids:
            self._ids = [self._pager.add_sequence() for _ in range(self._count)]
        done = {seq_id: self._pager.nearest(seq_id, min(self._length, tokens)) for seq_id in self._ids}
        for seq_id, length in done.items():
            self._pager.truncate(seq_id, length)
        prompts = {seq_id: self._tokens(tokens - length) for seq_id, length in done.items()}
        start = time.perf_counter()
        while any(length < tokens for length in done.values()):
            requests, budget, rows = [], self._plan.max_tokens, self._plan.max_rows
            for seq_id, length in done.items():
                count = min(tokens - length, budget)
                last = length + count == tokens
                if not count or (last and not rows):
                    continue
                budget, rows = budget - count, rows - last
                chunk, prompts[seq_id] = prompts[seq_id][:count], prompts[seq_id][count:]
                requests.append(BatchRequest(seq_id, chunk, length, "last" if last else "none"))
            self._host.read(launch_step(self._host, self._pager, requests))
            for request in requests:
                done[request.seq_id] += len(request.tokens)
        self._length = tokens
        seconds = time.perf_counter() - start
        for seq_id in self._ids:
            self._pager.keep_state(seq_id)
        return seconds

    def decode(self, steps: int) -> list[float]:
        """Adds one token to each sequence, `steps` times. Returns the seconds from the end of each step to the next."""
        return self._decode_ahead(steps) if self._host.pipelines else self._decode(steps)

    def _decode(self, steps: int) -> list[float]:
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            tokens = self._tokens(self._count)
            self._host.read(launch_step(self._host, self._pager, self._grow(tokens)))
            seconds.append(time.perf_counter() - start)
        return seconds

    def _decode_ahead(self, steps: int) -> list[float]:
        seconds = []
        start = time.perf_counter()
        samples = self._sample(self._tokens(self._count))
        for step in range(steps):
            ids = samples.tokens
            following = self._sample([0] * self._count, ids) if step + 1 < steps else None
            samples.read()
            now = time.perf_counter()
            seconds.append(now - start)
            start = now
            if following is not None:
                samples = following
        return seconds

    def _sample(self, tokens: list[int], ids: mx.array | None = None) -> Samples:
        """Launches a step and the choice of its most probable tokens."""
        logits = launch_step(self._host, self._pager, self._grow(tokens), ids)
        return Samples(self._host, logits, range(self._count), [Row(Sampler(Sampling()), 0)] * self._count)

    def _grow(self, tokens: list[int]) -> list[BatchRequest]:
        """Makes room for one more token in each sequence."""
        requests = [
            BatchRequest(seq_id, [token], self._length) for seq_id, token in zip(self._ids, tokens, strict=True)
        ]
        self._length += 1
        return requests

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self._random.integers(0, self._plan.vocab_size, count)]
