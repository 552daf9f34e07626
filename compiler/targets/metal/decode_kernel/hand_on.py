"""Decides which activations blocks hand each other in words instead of waiting for each other.

    StepProgram -> the same, with `handed` values, and barriers for all other buffers

A word is 16 bits of a number and 16 bits that say which value of the step it belongs to, written and read at once. So a
simdgroup that needs numbers reads their words until all are there: no barrier, and no second trip to memory for the
numbers themselves. Values have homes: words in the memory that the step kernel keeps. A home is used again only by
launches that have waited, by way of what they read, for all of the last value's readers.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mlxr.compiler.artifact.kernel_entry import KernelPort, body_of
from mlxr.compiler.artifact.program import Buffer
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.targets.metal.decode_kernel.step_program import (
    HandedValue,
    StepLaunch,
    StepProgram,
    ended_before,
    with_barriers,
)

_TYPES = (DType.BF16, DType.F16)
_OWN_SLOT = {"slots", "layer", "k_arena", "v_arena"}
"""The ports of attention that stores its own layer's newest key and value, and reads no other launch's."""
_VECTOR = 4
"""Words that are read at once."""
_TAKEN = {
    "x": re.compile(r"MLXR_TAKE(_AND_GET)?\("),
    "residual": re.compile(r"MLXR_TAKE_AND_GET\("),
    "qkv": re.compile(r"MLXR_TAKE_8\("),
}
"""What a kernel's text has where it may read a port in words, and nowhere reads it otherwise."""
MOST_VALUES = 4000
"""So that the 16 bits of a value differ from those of the step before."""


@dataclass
class _Home:
    count: int
    dtype: DType
    users: list[int]


def hand_on(program: StepProgram, buffers: Iterable[Buffer], sources: Mapping[str, str]) -> StepProgram:
    """The program with all values handed on in words that can be.

    Args:
        program: the steps of one sequence.
        buffers: the buffers of the phase.
        sources: the Metal text of each kernel, by its name; sums over ranks have none there.
    """
    counts = {buffer.name: _count(buffer) for buffer in buffers}
    names = list(dict.fromkeys(name for launch in program.launches for name in launch.names))
    chosen = [name for name in names if name in counts and _can(program, name, counts[name], sources)]
    if not chosen or len(chosen) > MOST_VALUES:
        return program
    types = {buffer.name: buffer.dtype for buffer in buffers}
    handed = frozenset(chosen)
    launches = tuple(_without(launch, handed, program) for launch in program.launches)
    values = {name: HandedValue(0, version, counts[name], types[name]) for version, name in enumerate(chosen, 1)}
    placed = with_barriers(replace(program, launches=launches, handed=values), program.masks)
    reach = [ended_before(placed, mask) for mask in program.masks]
    homes: list[_Home] = []
    for name in chosen:
        writers = [i for i, launch in enumerate(launches) if name in launch.written]
        users = [i for i, launch in enumerate(launches) if name in launch.names]
        home = next(
            (h for h in homes if (h.count, h.dtype) == (counts[name], types[name]) and _free(h, writers, reach)), None
        )
        if home is None:
            home = _Home(counts[name], types[name], [])
            homes.append(home)
        home.users = users
        values[name] = replace(values[name], home=homes.index(home))
    return placed


def _count(buffer: Buffer) -> int:
    """The numbers of a buffer, of one token."""
    count = 1
    for size in buffer.shape:
        count *= 1 if isinstance(size, str) else size
    return count


def _can(program: StepProgram, name: str, count: int, sources: Mapping[str, str]) -> bool:
    if name in program.outputs or count % _VECTOR or count < _VECTOR:
        return False
    for launch in program.launches:
        for i, port in _ports(launch, name):
            writes = i >= launch.num_inputs
            if port.dtype not in _TYPES or launch.kernel.name not in sources:
                return False
            text = sources[launch.kernel.name]
            if not (_stores_elements(body_of(text), port.name) if writes else _takes(text, port.name)):
                return False
    # Each value is written once in every step, before it is read.
    for mask in program.masks:
        running = [launch for launch in program.running(mask) if name in launch.names]
        if [name in launch.written for launch in running] != [True] + [False] * (len(running) - 1) or len(running) < 2:
            return False
    return True


def _ports(launch: StepLaunch, name: str) -> list[tuple[int, KernelPort]]:
    ports = (*launch.kernel.inputs, *launch.kernel.outputs)
    return [(i, ports[i]) for i, own in enumerate(launch.names) if own == name]


def _takes(text: str, port: str) -> bool:
    """Whether a kernel may read a port in words."""
    return port in _TAKEN and any(_TAKEN[port].search(line) for line in text.splitlines() if not line.startswith("#"))


def _stores_elements(body: str, port: str) -> bool:
    """Whether a kernel uses an output only to store single elements: `out[i] = ...;`."""
    uses = re.findall(rf"\b{port}\b(?!\s*\[)", body)
    return not uses and not re.search(rf"\b{port}\[[^;]*?\]\s*(?:[-+*/]=|\.)", body)


def _without(launch: StepLaunch, handed: frozenset[str], program: StepProgram) -> StepLaunch:
    """The launch with only those operands that may need a barrier."""
    ignored = {i for i, name in enumerate(launch.names) if name in handed}
    stores = launch.stores
    ports = [port.name for port in (*launch.kernel.inputs, *launch.kernel.outputs)]
    if _stores_own_slots(program):
        # Nobody reads the number in a token: it stands for what a launch has stored.
        ignored |= {i for i, port in enumerate(ports) if port in ("token", "token_out")}
        stores = frozenset()
        ignored |= {i for i, place in enumerate(launch.operands) if place.argument in launch.stores}
    return replace(launch, ignored=frozenset(ignored), stores=stores)


def _stores_own_slots(program: StepProgram) -> bool:
    """Whether each launch that touches a store is attention which stores, and reads, what is its layer's alone."""
    touching = [launch for launch in program.launches if any(p.argument in launch.stores for p in launch.operands)]
    for mask in program.masks:
        layers = []
        for launch in program.running(mask):
            if launch not in touching:
                continue
            ports = [port.name for port in launch.kernel.inputs]
            if not set(ports) >= _OWN_SLOT:
                return False
            layers.append(launch.operands[ports.index("layer")])
        if len(set(layers)) < len(layers):
            return False
    return True


def _free(home: _Home, writers: list[int], reach: list[dict[int, frozenset[int]]]) -> bool:
    """Whether all users of a home's last value have ended before any of the launches writes."""
    for ended in reach:
        last = {user for user in home.users if user in ended}
        if not all(last <= ended[writer] for writer in writers if writer in ended):
            return False
    return True
