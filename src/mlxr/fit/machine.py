"""A machine that a model may run on: this one, or one with a known chip."""

from dataclasses import dataclass

from mlxr.compiler.artifact import Chip
from mlxr.compiler.chips.catalog import find_chip, memory_of_chip
from mlxr.compiler.errors import RequestError
from mlxr.loading.resolve import chip_of
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.hosts.registry import AUTO, hosts
from mlxr.runtime.hosts.select import resolve_host
from mlxr.runtime.memory.free_memory import FreeMemory

_GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes:
        title: for people.
        host: runs the models.
        chip: of its GPU, if that is known.
        memory: what is free of the memory that weights and cache will be in.
        is_here: whether it is this one.
    """

    title: str
    host: HostEntry
    chip: Chip | None
    memory: FreeMemory
    is_here: bool


def this_machine(host: str = AUTO, most_bytes: int | None = None) -> Machine:
    """This machine as it is now.

    Args:
        host: where models run.
        most_bytes: memory that they may take; None: what is free.

    Raises:
        HostError: the host cannot run here.
    """
    entry = resolve_host(host)
    entry.check()
    chip, free = chip_of(entry), entry.load().free_memory()
    if most_bytes is not None and most_bytes < free.free_bytes:
        free = FreeMemory(most_bytes, most_bytes, "what models may take here")
    name = entry.name if chip is None else f"{chip.title}, {entry.name}"
    return Machine(f"this machine ({name})", entry, chip, free, is_here=True)


def machine_with(name: str, memory_bytes: int | None = None) -> Machine:
    """A machine with a known chip, on which nothing else runs.

    A GPU of Apple may use two thirds of its machine's memory, from 36 GiB on three quarters, by what macOS recommends
    (`recommendedMaxWorkingSetSize`).

    Args:
        name: of the chip.
        memory_bytes: its memory; None: the most that it is sold with.

    Raises:
        PlanError: no chip has that name; the message lists the known ones.
        RequestError: it is not known how much memory there may be, or how fast the chip is.
    """
    chip, sold = find_chip(name), memory_of_chip(name)
    if chip.figures is None:
        raise RequestError(f"--chip {name}: it is not known how fast that is; name a chip, such as m4-max or h200")
    if memory_bytes is None:
        if not sold:
            raise RequestError(f"--chip {name}: say how much memory the machine has, such as --memory 64GiB")
        memory_bytes = sold[-1] * _GIB
    is_apple = chip.title.startswith("Apple")
    title = f"{chip.title}, {memory_bytes / _GIB:g} GiB"
    usable, owner = memory_bytes, f"{chip.title} of {memory_bytes / _GIB:g} GiB"
    if is_apple:
        usable = memory_bytes * 3 // 4 if memory_bytes >= 36 * _GIB else memory_bytes * 2 // 3
        owner = f"the GPU of an {owner}"
    return Machine(
        title, hosts()["metal" if is_apple else "cuda"], chip, FreeMemory(usable, usable, owner), is_here=False
    )
