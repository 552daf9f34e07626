"""The cpu target's part of the plan: what the generated C program holds and calls, as data.

Everything that the program reads is a tensor, in memory as `CpuTensor` says; everything between two launches is an f32
buffer. All threads run every launch, with a barrier after each.
"""

from typing import Literal

from mlxr.compiler.artifact.record import Buffer, MemoryPlan, Record
from mlxr.compiler.artifact.weight_plan import TensorSource
from mlxr.compiler.formats.weight_format import WeightFormat


class CpuTensor(Record):
    """A weight as the C program reads it.

    Attributes:
        name: a matrix's canonical name, or a vector's name in the graph.
        layout: `rows`: row-major, as in files, and mapped from one where its type is the format; `packed`: panels of 16
            rows with their blocks interleaved, made at load by the program's own `mlxr_pack`; `vector`: f32.
        shape: [rows, columns] or [elements].
        size_bytes: in memory; packed panels are whole, so rows are rounded up to 16.
        parts: what it is in files, one after the other; of a matrix there is one.
    """

    name: str
    layout: Literal["rows", "packed", "vector"]
    format: WeightFormat
    shape: tuple[int, ...]
    size_bytes: int
    parts: tuple[TensorSource, ...]


class CpuKernelEntry(Record):
    """A function of the program; the place in `kernels` is its launch counter's."""

    name: str
    label: str


class CpuLaunch(Record):
    """One call. Inputs and outputs are tensors and buffers in the order of the function's parameters."""

    op: str
    kernel: str
    layer: int | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    needs_rows: bool = False
    """Runs only if the batch asks for logits."""


class CpuStep(Record):
    """One of the two programs."""

    name: Literal["decode", "prefill"]
    launches: tuple[CpuLaunch, ...]
    buffers: tuple[Buffer, ...]
    activation_bytes: int
    logits: str
    """The output that goes to the caller's memory."""


class CpuProgram(Record):
    """The whole program.

    Attributes:
        file: its one translation unit.
        abi: what `mlxr_abi` of the library returns.
        copy_blocks: the kernel that copies blocks; None where there is one sequence, which shares none.
        shared_bytes, thread_bytes: scratch of all threads together, and of each.
        memory: what it needs; of threads, one is counted.
    """

    file: str
    abi: int
    compute: Literal["exact", "fast"]
    kernels: tuple[CpuKernelEntry, ...]
    steps: tuple[CpuStep, ...]
    copy_blocks: str | None
    tensors: tuple[CpuTensor, ...]
    shared_bytes: int
    thread_bytes: int
    memory: MemoryPlan

    def __repr__(self) -> str:
        return f"<CpuProgram {self.file}: {len(self.kernels)} functions, compute {self.compute}>"

    __str__ = __repr__

    def step(self, name: str) -> CpuStep:
        """The step of that name."""
        return next(step for step in self.steps if step.name == name)
