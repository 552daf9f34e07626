"""Runs a model's C program over weights that are zeros, and prints how fast it was: `python -m mlxr.fit.rehearsal`.

The time of a step does not depend on numbers: every launch of the plan reads all of its bytes and multiplies them.
Where the bytes are, `EmptyWeights` decides. The engine runs as in `mlxr run`: its own cost is part of a step. Of a
model that leaves experts to the CPU beside a card, these alone are timed (`rehearsed_experts.py`).
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from mlxr.bench.peak_memory import peak_bytes, resident_bytes
from mlxr.compiler.artifact import Artifact, TensorSource, load_artifact
from mlxr.compiler.cli.guard import guarded
from mlxr.fit.empty_weights import EmptyWeights
from mlxr.fit.rehearsed_experts import rehearse_experts
from mlxr.loading import make_model
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.generation import Generation
from mlxr.runtime.engine.listeners import Inbox
from mlxr.runtime.engine.make_requests import TERMS, RequestMaker
from mlxr.runtime.engine.model_tokenizer import ModelTokenizer
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.memory.fitting_arena import has_free_size
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.tensor_rows import TensorRows

_STEPS, _SECONDS = 64, 3.0
"""Decode steps that are timed, at most, and for about how long."""
_RUNS = 3
"""The first run warms up: it touches memory for the first time. Of the others the fastest counts: what else the machine
does makes some slower."""


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
    events = Inbox()
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
    if artifact.experts is not None:
        print(json.dumps(rehearse_experts(artifact, int(threads) or None)))
        return 0
    file = open_weights(weights) if weights else None  # a model keeps it, and with it all that a GGUF file says
    tokenizer = None if file is None else ModelTokenizer(file, weights, None, artifact.plan.vocab_size).tokenizer
    print(json.dumps(rehearse(artifact, tokenizer, int(context), int(threads) or None)))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
