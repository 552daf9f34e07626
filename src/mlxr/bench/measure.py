"""Times one configuration of a loaded model, by the path that generation takes: batches, pager, host.

Two phases after a warm-up. Prefill: `batch` sequences of `prompt_tokens` each, in steps as large as the plan allows.
Decode: fresh sequences with max(context, 1) tokens each, then `decode_tokens` steps of one token for each.

Tokens are random and seeded, the logits are read after each step, and choosing the next token is not part of it. On
hosts that pipeline it is: there, as in generation, a decode step takes the likeliest tokens of the step before, and is
launched before anyone has read them.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np

from mlxr.bench.peak_memory import peak_bytes
from mlxr.bench.traffic import cache_bytes, weight_bytes
from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import RequestError
from mlxr.runtime.batch import BatchRequest
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.model import Model
from mlxr.runtime.pager import Pager
from mlxr.runtime.pipeline import Draws, launch_step
from mlxr.runtime.sampling import Sampler, Sampling

_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Workload:
    """What to measure. Counts are of each sequence."""

    prompt_tokens: int = 512
    decode_tokens: int = 64
    context: int = 0
    """Tokens in the cache before the first measured decode step; at least one is."""
    batch: int = 1

    @property
    def start(self) -> int:
        """Tokens in the cache before the first measured decode step."""
        return max(self.context, 1)

    @property
    def needed_context(self) -> int:
        """Longest sequence."""
        return max(self.prompt_tokens, self.start + self.decode_tokens)

    def check(self) -> None:
        """Refuses what cannot be measured.

        Raises:
            RequestError: a count is out of range.
        """
        for name, least in (("prompt_tokens", 1), ("decode_tokens", 1), ("context", 0), ("batch", 1)):
            value = getattr(self, name)
            if value < least:
                raise RequestError(f"--{name.replace('_', '-')} is {value}; expected at least {least}")


@dataclass(frozen=True)
class Measurement:
    """What was measured. Tokens per second count those of all sequences.

    Attributes:
        time_to_first_token_seconds: from a prompt of `prompt_tokens` to its logits, one sequence, when warm.
        weight_bytes_per_step: weights that a decode step reads, each once.
        read_gb_per_second: those and the cache's keys and values, by the time of a median step; 1 GB is 10^9 bytes.
        peak_memory_bytes: of the whole process, mapped files included.
        planned_bytes: weights and arena, as planned.
        launches_per_decode_step: kernels launched, on average.
    """

    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    time_to_first_token_seconds: float
    decode_step_ms: float
    weight_bytes_per_step: int
    read_gb_per_second: float
    peak_memory_bytes: int
    planned_bytes: int
    launches_per_decode_step: float


def measure(model: Model, work: Workload) -> Measurement:
    """Measures a workload.

    Raises:
        RequestError: it is out of range, or the artifact holds too few sequences or too short ones for it.
        ArenaFullError: the arena has too few blocks for it.
    """
    work.check()
    plan = model.artifact.plan
    _check_fits(model, work)
    sequences = Sequences(model, work.batch)
    warm = max(1, min(work.prompt_tokens, plan.max_tokens, plan.arena.context - _WARM_UP_STEPS))
    sequences.restart(warm)
    sequences.decode(min(_WARM_UP_STEPS, plan.arena.context - warm))
    sequences.close()
    first = Sequences(model, 1)
    first_seconds = first.restart(work.prompt_tokens)
    first.close()
    prefill_seconds = sequences.restart(work.prompt_tokens) if work.batch > 1 else first_seconds
    sequences.restart(work.start)
    launched = sum(model.host.launches.values())
    steps = sequences.decode(work.decode_tokens)
    launched = sum(model.host.launches.values()) - launched
    sequences.close()
    host, step = model.host.name, statistics.median(steps)
    read = weight_bytes(model.artifact, host, work.batch)
    cached = cache_bytes(model.arena.geometry, work.batch * (work.start + work.decode_tokens // 2))
    memory = plan.cpu.memory if host == "cpu" and plan.cpu else plan.memory
    return Measurement(
        prefill_tokens_per_second=work.batch * work.prompt_tokens / prefill_seconds,
        decode_tokens_per_second=work.batch * work.decode_tokens / sum(steps),
        time_to_first_token_seconds=first_seconds,
        decode_step_ms=1e3 * step,
        weight_bytes_per_step=read,
        read_gb_per_second=(read + cached) / step / 1e9,
        peak_memory_bytes=peak_bytes(),
        planned_bytes=memory.weights_bytes + memory.arena_bytes,
        launches_per_decode_step=launched / work.decode_tokens,
    )


def _check_fits(model: Model, work: Workload) -> None:
    arena = model.artifact.plan.arena
    if work.needed_context > arena.context:
        raise RequestError(
            f"a sequence would have {work.needed_context} tokens, the context is {arena.context}: ask for fewer, or "
            "compile the spec with a larger model.context"
        )
    if work.batch > arena.max_sequences:
        raise RequestError(
            f"--batch is {work.batch}, the artifact holds {arena.max_sequences} sequences: compile the spec with a "
            "larger cache.max_sequences"
        )


class Running(Protocol):
    """What sequences need of a model."""

    @property
    def artifact(self) -> Artifact:
        """What runs."""

    @property
    def host(self) -> Host:
        """Where."""

    @property
    def pager(self) -> Pager:
        """Of the host's arena."""


class Sequences:
    """Sequences of equal length that grow together, with random tokens."""

    def __init__(self, model: Running, count: int) -> None:
        """Holds nothing in the arena until it is resized."""
        self._host, self._pager, self._plan = model.host, model.pager, model.artifact.plan
        self._count = count
        self._ids: list[int] = []
        self._length = 0
        self._random = np.random.default_rng(1)

    def close(self) -> None:
        """Gives the sequences back."""
        for seq_id in self._ids:
            self._pager.free(seq_id)
        self._ids, self._length = [], 0

    def restart(self, tokens: int) -> float:
        """Forgets everything, then fills each sequence with so many tokens; the seconds that the steps took."""
        self.close()
        return self.resize(tokens)

    def resize(self, tokens: int) -> float:
        """Brings each sequence to so many tokens, cut or continued; the seconds that the steps took."""
        if not self._ids:
            self._ids = [self._pager.add_sequence() for _ in range(self._count)]
        done = dict.fromkeys(self._ids, min(self._length, tokens))
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
        return time.perf_counter() - start

    def decode(self, steps: int) -> list[float]:
        """Adds one token to each sequence, `steps` times; the seconds of each step, from the end of the one before."""
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
        draws = self._draw(self._tokens(self._count))
        for step in range(steps):
            following = self._draw([0] * self._count, draws.tokens(range(self._count))) if step + 1 < steps else None
            draws.read()
            now = time.perf_counter()
            seconds.append(now - start)
            start = now
            if following is not None:
                draws = following
        return seconds

    def _draw(self, tokens: list[int], drawn: mx.array | None = None) -> Draws:
        """Launches a step and the choice of its likeliest tokens."""
        logits = launch_step(self._host, self._pager, self._grow(tokens), drawn)
        return Draws(self._host, logits, range(self._count), [Sampler(Sampling())] * self._count)

    def _grow(self, tokens: list[int]) -> list[BatchRequest]:
        """One more token for each sequence."""
        requests = [
            BatchRequest(seq_id, [token], self._length) for seq_id, token in zip(self._ids, tokens, strict=True)
        ]
        self._length += 1
        return requests

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self._random.integers(0, self._plan.vocab_size, count)]
