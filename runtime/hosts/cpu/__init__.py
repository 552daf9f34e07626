"""Host cpu: the artifact's C program, compiled for this CPU.

    processor        what this CPU is, and which of its features the compiler may use
    instruction_sets sets of instructions that the program can be held to, by name
    toolchain        which C compilers there are, and how to call them
    build            compiles the C text to a shared library, cached by content
    build_ahead      builds while the rest of the artifact is still being compiled
    units            cuts the text into units that can be compiled by themselves
    compile_units    compiles units side by side, and links them
    library          calls the library through ctypes
    memory           zeroed memory in large pages, and memory for logits that is used again from step to step
    tensors          maps, converts or packs the weights for the program
    placing          the place of each tensor, and what fills it
    pack_panels      packs a matrix, into memory or into a file
    panel_file       the file of packed weights in the cache
    host             the host itself

Only `tensors` and `host` know what a plan is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlxr.runtime.hosts.entry import BeginBuild, HostEntry

if TYPE_CHECKING:
    from mlxr.compiler.artifact import Artifact
    from mlxr.runtime.hosts.host import Host


def _check() -> None:
    from mlxr.runtime.hosts.cpu.toolchain import find_compilers, no_compiler  # noqa: PLC0415 (imported on first use)

    if not find_compilers():
        raise no_compiler()


def _load() -> "type[Host]":
    from mlxr.runtime.hosts.cpu.host import CpuHost  # noqa: PLC0415

    return CpuHost


def _prepare(artifact: "Artifact") -> None:
    from mlxr.runtime.hosts.cpu.host import open_library  # noqa: PLC0415

    open_library(artifact, shows_progress=True)


@contextmanager
def _building_ahead() -> Iterator[BeginBuild]:
    from mlxr.runtime.hosts.cpu.build_ahead import building_ahead  # noqa: PLC0415

    with building_ahead() as begin:
        yield begin


HOST = HostEntry(
    name="cpu",
    summary="C made for this CPU",
    target="cpu",
    load=_load,
    check=_check,
    preference=30,
    auto=True,
    takes_threads=True,
    activations=("f32",),
    prepare=_prepare,
    building_ahead=_building_ahead,
    cached="libraries of host cpu",
)
