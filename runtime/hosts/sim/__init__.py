"""Host sim: runs the artifact's complete Metal files on any CPU, with strict checks.

Only `host` knows plans. To the other modules a kernel is text, and a launch is buffers and a grid.

    signature    reads a kernel's name and parameters from its text
    toolchain    finds clang and says how to compile and link
    instrument   puts the checks of memory accesses into the LLVM IR
    build        text -> shared library, cached by content
    library      the C runtime (fibers, barriers, simdgroup operations, workers) through ctypes
    faults       what a launch reports when a kernel did something illegal
    kernel       SimKernel, SimBuffer, prepare: what the rest of the runtime uses
    host         the host itself: the launches of a plan, one after another
"""

from typing import TYPE_CHECKING

from mlxr.runtime.hosts.entry import HostEntry

if TYPE_CHECKING:
    from mlxr.runtime.hosts.host import Host


def _check() -> None:
    from mlxr.runtime.hosts.sim.toolchain import find_toolchain  # noqa: PLC0415 (imported when wanted)

    find_toolchain()


def _load() -> "type[Host]":
    from mlxr.runtime.hosts.sim.host import SimHost  # noqa: PLC0415

    return SimHost


HOST = HostEntry(
    name="sim",
    summary="the Metal kernels, checked, on any CPU",
    target="metal",
    load=_load,
    check=_check,
    preference=40,
    deterministic=True,
    cached="kernels of host sim",
    leaves_experts=True,
)
