"""Runs a model's C program over weights that are zeros, and prints how fast it was: `python -m mlxr.fit.rehearsal`.

The time of a step does not depend on numbers: every launch of the plan reads all of its bytes and multiplies them. What
matters is where the bytes are. So tensors get addresses in a pool that is larger than a CPU's caches, one after another
and from its start again; a model that is smaller than the pool lies there as it would in memory. Of experts every token
chooses the first ones. So in a pool that is used again the next tensor begins after those: of each layer, other bytes
are read. The engine runs as in `mlxr run`: its own cost is part of a step.
"""

import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mlxr.bench.peak_memory import peak_bytes, resident_bytes
from mlxr.compiler.artifact import Artifact, CTensor, TensorSource, load_artifact
from mlxr.compiler.cli.guard import guarded
from mlxr.loading import make_model
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.generation import Generation
from mlxr.runtime.engine.make_requests import TERMS, RequestMaker
from mlxr.runtime.engine.model_tokenizer import ModelTokenizer
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.cpu.memory import aligned, reserve
from mlxr.runtime.memory.fitting_arena import has_free_size
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.tensor_rows import TensorRows

_POOL_BYTES = 1 << 30
_STEPS, _SECONDS = 64, 3.0
"""Decode steps that are timed, at most, and for about how long."""
_RUNS = 3
"""The first run warms up: it touches memory for the first time. Of the others the fastest counts: what else the machine
does makes some slower."""


class EmptyWeights:
    """Zeros in memory that stand for the tensors of a program.

    Attributes:
        size_bytes: of the pool in which they are.
    """

    def __init__(self, tensors: Sequence[CTensor], most_bytes: int = _POOL_BYTES) -> None:
        """Takes the memory, page by page: one that was never written is shared by all."""
        sizes = [aligned(tensor.size_bytes) for tensor in tensors]
        self.size_bytes = min(sum(sizes), max(most_bytes, *sizes))
        self._memory = reserve(self.size_bytes)
        self._memory[:] = 0
        self._addresses: dict[CTensor, int] = {}
        place, is_whole = 0, self.size_bytes == sum(sizes)
        for tensor, size in zip(tensors, sizes, strict=True):
            place = 0 if place + size > self.size_bytes else place
            self._addresses[tensor] = self._memory.ctypes.data + place
            place += size if is_whole or tensor.matrices == 1 else aligned(tensor.stride * tensor.chosen)

    def lent(self) -> Mapping[CTensor, int]:
        """See `Lender`."""
        return self._addresses


def rehearse(artifact: Artifact, tokenizer: Tokenizer | None, context: int, threads: int | None) -> dict[str, float]:
    """The fields of a `Rehearsal`."""
    plan, program = artifact.plan, artifact.plan.program(CpuHost.target)
    assert program.library is not None, "a program in C has a library"
    used = min(context + _STEPS, program.arena.context)
    geometry = program.arena
    if has_free_size(geometry):
        geometry = geometry.with_blocks(min(geometry.num_blocks, -(-used // geometry.block_size) + 1))
    base = resident_bytes()
    arena, weights = CpuHost.arena_type(geometry), EmptyWeights(program.library.tensors)
    host = CpuHost(artifact, _unread, arena, threads=threads, lender=weights)
    core = EngineCore(host, Pager.from_geometry(geometry), None)
    maker = RequestMaker(plan, geometry, tokenizer, (artifact.spec.name,))
    random = np.random.default_rng(1)
    length = max(1, used - _STEPS)
    runs = []
    for _ in range(_RUNS):
        prompt = [int(token) for token in random.integers(0, plan.vocab_size, length)]
        first, steps = _times(core, maker, prompt)
        runs.append((first, statistics.median(steps)))
    footprint = program.memory.activation_bytes + program.library.thread_bytes * ((host.threads or 1) - 1)
    planned = weights.size_bytes + footprint + geometry.size_bytes
    return {
        "decode_tokens_per_second": 1 / min(step for _, step in runs[1:]),
        "prompt_tokens_per_second": length / min(first for first, _ in runs[1:]),
        "program_bytes": max(base, peak_bytes() - planned),  # not all that is planned may have been touched
    }


def _times(core: EngineCore, maker: RequestMaker, prompt: list[int]) -> tuple[float, list[float]]:
    """Seconds to the first token, and of each step after that."""
    events: deque[Event | BaseException] = deque()
    begun = time.perf_counter()
    sampling = Sampling(max_tokens=_STEPS, ignore_eos=True)
    generation = Generation(core, maker.make(0, prompt, sampling, events.append, core.clock(), TERMS), events)
    next(generation)
    now = begin = time.perf_counter()
    first, steps = now - begun, []
    for _ in generation:
        before, now = now, time.perf_counter()
        steps.append(now - before)
        if now - begin > _SECONDS:
            break
    generation.close()
    return first, steps


def _unread(source: TensorSource) -> TensorRows:
    raise AssertionError(f"{source.name} is lent")


_ALSO_IN_MEMORY = make_model
"""What a process has that loads a model; the rest is imported here anyway."""


def main() -> int:
    """Rehearses what the arguments name: a folder with an artifact, weights or "", tokens, threads or 0."""
    folder, weights, context, threads = sys.argv[1:]
    artifact = load_artifact(Path(folder))
    file = open_weights(weights) if weights else None  # a model keeps it, and with it all that a GGUF file says
    tokenizer = None if file is None else ModelTokenizer(file, weights, None, artifact.plan.vocab_size).tokenizer
    print(json.dumps(rehearse(artifact, tokenizer, int(context), int(threads) or None)))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
