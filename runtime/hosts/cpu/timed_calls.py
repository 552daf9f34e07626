"""How long each call of a C program takes on this machine, by a clock that the program is compiled with for that.

The program runs apart from the one that answers requests: over the same weights, with an arena and threads of its own.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from mlxr.compiler.artifact import PHASES, ArenaGeometry, Plan
from mlxr.compiler.artifact.typical_steps import chunk_dims, usual_context
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cpu.c_batch import c_batch
from mlxr.runtime.hosts.cpu.library import Library, OpenProgram
from mlxr.runtime.hosts.cpu.mapped_arena import MappedArena
from mlxr.runtime.hosts.cpu.placing import PlacedTensors

_STEPS = 9
"""Steps of each kind, of which the middle one is told of each call: others that run here disturb some."""
_SECONDS = 3.0
"""After that long, no further steps of a kind are run: of a large model one prompt has to do."""
_TOKEN = 1


@dataclass(frozen=True)
class TimedCalls:
    """The calls of a phase.

    Attributes:
        batch: what was computed, for people.
        threads: that computed it.
        times_us: microseconds of each call, in the phase's order, waiting for all threads included; 0 of one that did
            not run.
    """

    batch: str
    threads: int
    times_us: tuple[float, ...]


def timed_calls(
    plan: Plan, library: Library, placed: PlacedTensors, geometry: ArenaGeometry, threads: int
) -> dict[str, TimedCalls]:
    """Runs prompts and steps of one new token, and returns the times of their calls by phase.

    Args:
        plan: of the program.
        library: the program, compiled with a clock.
        placed: its weights.
        geometry: of the arena of the program that answers.
        threads: how many threads run.

    Raises:
        HostError: there is not enough memory, or that many threads cannot run.
        ArenaError: the machine has no memory for another arena.
    """
    context, chunk = usual_context(plan), chunk_dims(plan)["tokens"]
    geometry = _small(geometry, max(context, chunk))
    arena = MappedArena(geometry)
    program = OpenProgram(library, placed.addresses, arena.addresses(), threads, keep=(placed.owners, arena))
    try:
        prompts: list[Sequence[int]] = []
        begun = perf_counter()
        while not prompts or (len(prompts) < _STEPS and perf_counter() - begun < _SECONDS):
            pager = Pager.from_geometry(geometry)
            prompts.append(_step(program, library, plan, pager, pager.add_sequence(), 0, chunk))
        pager = Pager.from_geometry(geometry)
        sequence, read = pager.add_sequence(), max(1, context - _STEPS)
        for start in range(0, read, chunk):  # so that attention reads what was written
            _step(program, library, plan, pager, sequence, start, min(chunk, read - start))
        steps = [_step(program, library, plan, pager, sequence, at, 1) for at in range(read, context)]
    finally:
        program.close()
    told = {
        "decode": (f"1 sequence of {context} tokens", steps),
        "prefill": (f"the first {chunk} tokens of a prompt", prompts),
    }
    return {
        phase: TimedCalls(batch, threads, tuple(median(times) / 1000 for times in zip(*runs, strict=True)))
        for phase, (batch, runs) in told.items()
        if runs
    }


def _step(
    program: OpenProgram, library: Library, plan: Plan, pager: Pager, sequence: int, start: int, tokens: int
) -> Sequence[int]:
    """Nanoseconds of each call of a step that appends tokens to a sequence."""
    phase = 0 if tokens == 1 else 1
    batch = Batch.build([BatchRequest(sequence, [_TOKEN] * tokens, start)], pager, plan.query_tile).with_adapters
    logits = np.empty((batch.num_rows, plan.output_width), np.float32)
    before = _clock(library, plan, phase)
    program.step(c_batch(phase, batch, np.asarray(batch.tokens), logits, 0, 0))
    return [now - then for now, then in zip(_clock(library, plan, phase), before, strict=True)]


def _clock(library: Library, plan: Plan, phase: int) -> list[int]:
    assert library.times is not None, "it was compiled with a clock"
    calls = len(next(one for one in plan.program("cpu").phases if one.name == PHASES[phase]).launches)
    return ctypes.cast(library.times(phase), ctypes.POINTER(ctypes.c_uint64))[:calls]


def _small(geometry: ArenaGeometry, tokens: int) -> ArenaGeometry:
    """An arena with room for one sequence of so many tokens, where the program takes any number of blocks."""
    if geometry.mode == "contiguous" or geometry.layout != "block":
        return geometry
    blocks = min(geometry.num_blocks, -(-(tokens + _STEPS) // geometry.block_size) + 1)
    return geometry.with_blocks(blocks)
