"""Plays a step program block by block, in any order: who waits for words that nobody will write waits forever."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.targets.metal.decode_kernel.hand_on import hand_on
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import make_step_program
from mlxr.compiler.targets.metal.decode_kernel.step_program import StepLaunch, StepProgram


@dataclass
class _Memory:
    """Words by home and threadgroup, and how often blocks have arrived at barriers."""

    words: dict[tuple[int, int], int]
    arrived: int = 0


def handed(artifact: Artifact) -> StepProgram:
    """The steps of one sequence, whose blocks hand each other values in words."""
    first = artifact.plan.first
    sources = {kernel.name: artifact.kernel_text(kernel.name) for kernel in first.kernels}
    return hand_on(make_step_program(first), first.phase("decode").buffers, sources)


def stuck(program: StepProgram, mask: int, blocks: int, seed: int) -> str | None:
    """Runs a step with blocks that are fast or slow by chance; None: all came to the end.

    A value has a word for each threadgroup of the launch that writes it.
    """
    rng, memory = random.Random(seed), _Memory({})
    waiting_for = [""] * blocks
    lives = {block: _block(program, mask, block, blocks, memory, waiting_for) for block in range(blocks)}
    speed = {block: rng.choice((1, 1, 50)) for block in lives}
    idle = 0
    while lives:
        (block,) = rng.choices(list(lives), [speed[b] for b in lives])
        moved = next(lives[block], None)
        if moved is None:
            del lives[block]
        idle = 0 if moved is not False else idle + 1
        if idle > 4000 * blocks:
            return "; ".join(sorted({waiting_for[b] for b in lives}))
    return None


def _block(
    program: StepProgram, mask: int, block: int, blocks: int, memory: _Memory, waiting_for: list[str]
) -> Iterator[bool]:
    barriers = 0
    sizes: dict[str, int] = {}
    for launch in program.running(mask):
        if launch.waits:
            barriers += blocks
            memory.arrived += 1
            while memory.arrived < barriers:
                waiting_for[block] = "a barrier"
                yield False
        count = _threadgroups(launch)
        sizes |= dict.fromkeys(launch.written, count)
        mine = range(block, count, blocks)
        if not mine:
            continue
        for name, port in zip(launch.names, launch.kernel.inputs, strict=False):
            value = program.handed.get(name)
            if value is None:
                continue
            for word in range(sizes[name]) if port.name == "x" else _part(mine, count, sizes[name]):
                while memory.words.get((value.home, word)) != value.version:
                    waiting_for[block] = f"{name} of {launch.kernel.name}"
                    yield False
                yield True
        for name in launch.written:
            value = program.handed.get(name)
            for word in mine if value else ():
                memory.words[value.home, word] = value.version
                yield True
        yield True


def _threadgroups(launch: StepLaunch) -> int:
    x, y, z = (extent.times for extent in launch.grid)
    return x * y * z


def _part(mine: range, count: int, words: int) -> list[int]:
    """What threadgroups read of a value of which each reads a part, and all together all."""
    return sorted(
        {
            word
            for i in mine
            for word in range(i * words // count, max((i + 1) * words // count, i * words // count + 1))
        }
    )
