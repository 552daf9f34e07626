"""What a C program has besides its launches: how the runtime calls its library, and its weights in memory."""

from typing import Literal

from mlxr.compiler.artifact.weight_plan import TensorSource
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.record import Record

LATER = "later"
"""The port of a tensor that a call does not read, but brings closer: into memory, or into a cache of the CPU."""


class CTensor(Record):
    """A weight as the C program reads it.

    Attributes:
        name: a matrix's canonical name, or a vector's name in the graph.
        layout: `rows`: row-major, as in files, and mapped straight from a file that has it in this format; `packed`:
            panels of 16 rows with interleaved blocks, which the program's own `mlxr_pack` makes at load; `vector`: f32.
        shape: [rows, columns] or [elements].
        size_bytes: its size in memory; packed panels are whole, so rows are rounded up to 16.
        parts: the tensors of files that make it up, in order; a matrix has one.
        matrices: how many matrices of as many rows it consists of, one for each expert; each begins at a multiple of
            `stride`.
        chosen: how many of them a token is multiplied with.
    """

    name: str
    layout: Literal["rows", "packed", "vector"]
    format: WeightFormat
    shape: tuple[int, ...]
    size_bytes: int
    parts: tuple[TensorSource, ...]
    matrices: int = 1
    chosen: int = 1

    @property
    def stride(self) -> int:
        """Bytes from one of its matrices to the next."""
        return self.size_bytes // self.matrices


class CLibrary(Record):
    """The library that a C program compiles to.

    Attributes:
        abi: what `mlxr_abi` of the library returns.
        compute: `exact`: inputs of products stay f32; `fast`: they may become 8-bit integers or bf16.
        tensors: every weight, in the order in which `mlxr_open` takes their addresses.
        shared_bytes, thread_bytes: scratch memory that all threads share, and of each thread.
        step_batches: how many batches a step may have; see `Lowered`.
        packing: a hash of all that decides what panels look like; empty: it has none.
    """

    abi: int
    compute: Literal["exact", "fast"]
    tensors: tuple[CTensor, ...]
    shared_bytes: int
    thread_bytes: int
    step_batches: int = 1
    packing: str = ""
