"""The sim host: runs standalone Metal kernel text on any CPU, with strict checks.

Stage: executes the launches of a plan where there is no GPU. Nothing here knows plans: a kernel is text, a launch is
buffers and a grid.

    signature    reads a kernel's name and parameters from its text
    toolchain    finds clang and says how to compile and link
    qualifiers   refuses pointers without an address space, which clang would let pass
    instrument   puts the checks of memory accesses into the LLVM IR
    build        text -> shared library, cached by content
    library      the C runtime (fibers, barriers, simdgroup operations, workers) through ctypes
    faults       what a launch reports when a kernel did something illegal
    kernel       SimKernel, SimBuffer, prepare: what the rest of the runtime uses
"""

from mlxr.runtime.hosts.sim.kernel import SimBuffer, SimKernel, prepare
from mlxr.runtime.hosts.sim.signature import Param

__all__ = ["Param", "SimBuffer", "SimKernel", "prepare"]
