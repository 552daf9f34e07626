"""MLXR as an engine: an artifact for each row, on weights that are already there, generating as `mlxr run` does."""

import os
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
from peers.worker import random_tokens

from gpu.weights import RandomWeights, pattern
from gpu.work import GROWTH, Row
from mlxr.bench.traffic import cache_bytes, weight_bytes
from mlxr.compiler.artifact import ArenaGeometry, Artifact
from mlxr.compiler.chips.catalog import find_chip_of_device
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.generation import Generation
from mlxr.runtime.engine.make_requests import TERMS, RequestMaker
from mlxr.runtime.engine.request import Listener, Request
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.select import array_host
from mlxr.tuning.timed_launches import device_name

WARM_UP = 4
"""Steps before each measurement: a pipeline that has stood still has one step done in advance."""


class FilledArena(Arena):
    """An arena of random keys and values, so that a long context needs no prompt to be read."""

    def __init__(self, geometry: ArenaGeometry) -> None:
        """Fills it on the default device; arenas of the same shape hold the same numbers, whatever their type."""
        self._stores = {
            part.name: mx.contiguous(
                pattern(int(np.prod(part.shape)), i).reshape(part.shape).astype(MLX_DTYPES[str(part.dtype)])
            )
            for i, part in enumerate(geometry.allocations, 1)
        }
        self.token = mx.zeros((8,), dtype=mx.uint32)
        self.geometry = geometry
        mx.eval(*self._stores.values(), self.token)


def compiled(document: Mapping[str, Any]) -> Artifact:
    """The artifact of a spec, for hosts that take weights as arrays, with this chip's launch geometry."""
    chip = find_chip_of_device(device_name())
    return compile_spec(ModelSpec.model_validate(document), targets=("metal",), chip=chip).artifact


class Loaded:
    """An artifact with weights on a host, and sequences in its arena."""

    def __init__(self, artifact: Artifact, host: str, weights: Mapping[str, mx.array]) -> None:
        """Prepares the host; kernels may be built at their first launch.

        Args:
            artifact: the compiled model.
            host: its name.
            weights: the weights by the names of the artifact's plan, as the host takes them.
        """
        self.artifact, self.plan = artifact, artifact.plan
        self.arena = FilledArena(self.plan.arena)
        self.pager = Pager.from_geometry(self.plan.arena)
        self.host = array_host(host)(artifact, weights, self.arena)
        self._core = EngineCore(self.host, self.pager)
        self._maker = RequestMaker(self.plan, self.plan.arena, None, ("random weights",))

    def hold(self, batch: int, tokens: int) -> list[int]:
        """Makes sequences of so many tokens, whose keys and values are the arena's random numbers."""
        ids = [self.pager.add_sequence() for _ in range(batch)]
        if tokens:
            for seq_id in ids:
                self.pager.pass_over(seq_id, tokens)
            self.pager.take_copies()
        return ids

    def release(self, ids: Sequence[int]) -> None:
        """Gives sequences back."""
        for seq_id in ids:
            self.pager.free(seq_id)

    def step(self, ids: Sequence[int], start: int, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """One step of sequences that all have `start` tokens: logits after the last of each, [sequences, vocab]."""
        requests = [BatchRequest(seq_id, list(new), start) for seq_id, new in zip(ids, tokens, strict=True)]
        batch = Batch.build(requests, self.pager, self.plan.query_tile)
        self.pager.take_copies()
        return self.host.read(self.host.step(batch))

    def read_prompt(self, seq_id: int, tokens: Sequence[int]) -> np.ndarray:
        """Reads a prompt in steps as long as the plan allows: logits after its last token, [1, vocab]."""
        step = self.plan.max_tokens
        logits = np.zeros((1, 0), np.float32)
        for start in range(0, len(tokens), step):
            logits = self.step([seq_id], start, [tokens[start : start + step]])
        return logits

    def generate(self, prompts: Sequence[Sequence[int]], steps: int) -> Generation:
        """Starts generating, greedily, `steps` tokens for each prompt."""
        events: deque[Event | BaseException] = deque()
        return Generation(self._core, self._requests(prompts, steps, events.append), events)

    def pretend_cached(self, prompt: Sequence[int]) -> None:
        """Makes the arena's random numbers the keys and values of a prompt, as the prefix cache knows it."""
        (request,) = self._requests([prompt], 1, list)
        (seq_id,) = self.hold(1, len(prompt))
        self.pager.free(seq_id, prompt, request.hashes, len(prompt))

    def _requests(self, prompts: Sequence[Sequence[int]], steps: int, listener: Listener) -> list[Request]:
        sampling = Sampling(max_tokens=steps)
        return [
            request
            for number, prompt in enumerate(prompts)
            for request in self._maker.make(number, prompt, sampling, listener, self._core.clock(), TERMS)
        ]


class Ours:
    """One row's measurements of MLXR."""

    def __init__(
        self, row: Row, document: Mapping[str, Any], host: str, weights: RandomWeights, keeps_unpacked: bool = True
    ) -> None:
        """Compiles and loads.

        Args:
            row: what will be measured.
            document: its spec.
            host: the host's name.
            weights: the model's weights.
            keeps_unpacked: whether weights that are unpacked for MLX stay unpacked, as they do by default.
        """
        setting = {} if keeps_unpacked else {"MLXR_UNPACKED_MIB": "0"}
        self._row = row
        artifact = compiled(document)
        with mock.patch.dict(os.environ, setting):
            self._loaded = Loaded(artifact, host, weights.as_read_by(host, artifact.plan.weights))
        self._generation: Generation | None = None
        self._left = 0

    @property
    def planned_bytes(self) -> int:
        """Bytes that a step in the middle of a turn reads, as MLXR counts them, to compare with the row's own count."""
        artifact = self._loaded.artifact
        tokens, batch = self._row.tokens + GROWTH // 2, self._row.batch
        return weight_bytes(artifact, "metal", batch) + cache_bytes(artifact.plan.arena, tokens, batch)

    def decode(self, steps: int) -> float:
        """Seconds of a step, averaged over about `steps`; sequences that have grown too long start again.

        It is timed from the end of a launch, which may be of several steps, to the end of another.
        """
        if self._left < steps + WARM_UP:
            self._restart()
        self._decode(WARM_UP)
        start = time.perf_counter()
        done = self._decode(steps)
        return (time.perf_counter() - start) / done

    def _decode(self, steps: int) -> int:
        """At least so many steps, as far as there are as many, to the end of a launch; how many."""
        assert self._generation is not None, "it has been started"
        done = 0
        while done < steps and (events := [*self._generation.next_launch()]):
            done += len(events) // self._row.batch
        self._left -= done
        return done

    def _restart(self) -> None:
        self.close()
        batch, vocab = self._row.batch, self._loaded.plan.vocab_size
        prompts = [random_tokens(self._row.tokens + 1, vocab, seed) for seed in range(batch)]
        for prompt in prompts:
            self._loaded.pretend_cached(prompt[:-1])
        self._generation = self._loaded.generate(prompts, GROWTH + 1)
        started: Counter[int] = Counter()
        while len(started) < batch:
            started.update(event.index for event in self._generation.next_launch())
        self._left = GROWTH - max(started.values())

    def prefill(self) -> float:
        """Seconds from a prompt to its first token, the sequence's blocks empty."""
        prompt = random_tokens(self._row.tokens, self._loaded.plan.vocab_size)
        start = time.perf_counter()
        for _ in self._loaded.generate([prompt], 1):
            pass
        return time.perf_counter() - start

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits after the last of a few tokens, read into an empty sequence: [vocab]."""
        self.close()
        ids = self._loaded.hold(1, 0)
        logits = self._loaded.read_prompt(ids[0], tokens)[0]
        self._loaded.release(ids)
        return logits

    def close(self) -> None:
        """Ends the current generation."""
        if self._generation is not None:
            self._generation.close()
        self._generation, self._left = None, 0
