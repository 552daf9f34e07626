"""Which tensors of a weight file make up each weight that the kernels read.

Part of the plan. A packed weight is the concatenation along axis 0 of its parts, in order, so that one launch can read
several projections as one matrix; a weight of one part is that tensor. A file may hold a part under several names, in
another order of rows, among the rows of other parts, or as one tensor for each expert: a `Recipe` says which, in
numbers.
"""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import WeightLayout, layout_of


@dataclass(frozen=True)
class Rows:
    """Some rows of a file's tensor, in the model's order.

    Row r of the model, written as digits of the mixed radix `counts` (the last changes fastest), is row
    start + sum(digit * stride) of the file.
    """

    start: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """How a part is made of the tensors of one kind of file."""

    tensor: str
    """Name in the file; `{e}` in it stands for 0, 1, ... of several tensors that follow one another."""
    stack: int = 1
    """How many those are."""
    rows: Rows | None = None
    """Rows of each of them; None: all, as they are."""
    add: float = 0.0
    """Added to every number."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names in the file, in order."""
        return tuple(self.tensor.replace("{e}", str(index)) for index in range(self.stack))


@dataclass(frozen=True)
class TensorSource:
    """One tensor of the model, and where weight files have it."""

    name: str
    """Canonical name, e.g. `layers.0.attention.q`."""
    shape: tuple[int, ...]
    """Rows and columns, or the length of a vector."""
    safetensors: tuple[Recipe, ...]
    """In safetensors files: the first whose tensors the file holds."""
    gguf: tuple[Recipe, ...]
    """In GGUF files, likewise."""
    format: WeightFormat = WeightFormat.F32
    """How the spec has it held in memory."""


@dataclass(frozen=True)
class WeightPlan:
    """One weight as the kernels of the metal target read it, and as the graph has its numbers."""

    name: str
    """Name of the buffer in the plan's launches."""
    shape: tuple[int, ...]
    dtype: DType
    parts: tuple[TensorSource, ...]
    """Concatenated along axis 0, in this order."""

    @property
    def layout(self) -> WeightLayout:
        """The weight's buffer: where its parts' rows lie."""
        columns = self.shape[1] if len(self.shape) == 2 else 1
        return layout_of([(part.format, part.shape[0]) for part in self.parts], columns)

    @property
    def size_bytes(self) -> int:
        """Of that buffer."""
        return self.layout.size_bytes
