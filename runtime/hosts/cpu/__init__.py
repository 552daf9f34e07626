"""Host cpu: the artifact's C program, compiled for this CPU.

    processor      what this CPU is, and what the compiler may use of it
    toolchain      which C compilers there are, and how to call them
    build          text -> shared library, cached by content
    library        the library through ctypes: a program, opened on tensors and an arena
    memory         zeroed memory in large pages
    logits_memory  memory for logits, used again
    tensors        weights, mapped from a file or packed, where the program expects them
    host           the host itself

Only `tensors` and `host` know plans. To the other modules a program is text, and a step is a batch.
"""

from typing import TYPE_CHECKING

from mlxr.runtime.hosts.entry import HostEntry

if TYPE_CHECKING:
    from mlxr.runtime.hosts.host import Host


def _check() -> None:
    from mlxr.runtime.hosts.cpu.toolchain import find_compilers, no_compiler  # noqa: PLC0415 (imported when wanted)

    if not find_compilers():
        raise no_compiler()


def _load() -> "type[Host]":
    from mlxr.runtime.hosts.cpu.host import CpuHost  # noqa: PLC0415

    return CpuHost


HOST = HostEntry(
    name="cpu",
    summary="C made for this CPU",
    target="cpu",
    load=_load,
    check=_check,
    rank=30,
    auto=True,
    takes_threads=True,
    activations=("f32",),
    cached="libraries of host cpu",
)
