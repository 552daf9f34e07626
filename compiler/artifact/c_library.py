"""What a program of C has beside its launches: how the runtime calls its library, and its weights in memory."""

from typing import Literal

from mlxr.compiler.artifact.weight_plan import TensorSource
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.record import Record


class CTensor(Record):
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


class CLibrary(Record):
    """The library that a program's C text compiles to.

    Attributes:
        abi: what `mlxr_abi` of the library returns.
        compute: whether inputs stay f32 in products (`exact`), or may become 8-bit integers or bf16 (`fast`).
        tensors: every weight, in the order in which `mlxr_open` takes their addresses.
        shared_bytes, thread_bytes: scratch of all threads together, and of each.
    """

    abi: int
    compute: Literal["exact", "fast"]
    tensors: tuple[CTensor, ...]
    shared_bytes: int
    thread_bytes: int
