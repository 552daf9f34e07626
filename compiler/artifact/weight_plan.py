"""The tensors of weight files that make up each weight of the kernels.

Part of the plan. A packed weight is the concatenation of its parts along axis 0, in order, so that one launch can read
several projections as one matrix; a weight of one part is that tensor. A file may hold a part under another name, with
its rows in another order, among the rows of other parts, or as one tensor per expert: a `Recipe` says how, in numbers.
"""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import WeightLayout, layout_of


@dataclass(frozen=True)
class Rows:
    """Some rows of a file's tensor, in the model's order.

    Write r as digits of the mixed radix `counts` (the last digit changes fastest): the model's row r is the file's row
    start + sum(digit * stride).
    """

    start: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Columns:
    """Some columns of a file's tensor: those from `first` on, of `total`.

    They are adjacent, or several runs of equal length, whose beginnings are `stride` apart.
    """

    first: int
    total: int
    runs: int = 1
    stride: int = 0

    @property
    def each(self) -> "tuple[Columns, ...]":
        """Each run by itself."""
        return tuple(Columns(self.first + run * self.stride, self.total) for run in range(self.runs))

    def end(self, columns: int) -> int:
        """The column after the last one of so many."""
        return self.each[-1].first + columns // self.runs


@dataclass(frozen=True)
class Recipe:
    """How to make a part from the tensors of one kind of file."""

    tensor: str
    """Name in the file; with several tensors, `{e}` in it stands for 0, 1, ... of them, which are concatenated."""
    stack: int = 1
    """How many tensors there are."""
    rows: Rows | None = None
    """The rows to take from each; None: all, in the file's order."""
    add: float = 0.0
    """A constant that is added to every number."""
    first: int = 0
    """The first number for `{e}`."""
    columns: Columns | None = None
    """The columns to take; None: all."""
    is_transposed: bool = False
    """Whether the last two dimensions of each tensor are swapped before that; for float types only."""
    matrix_rows: int | None = None
    """Rows of the matrices of which a tensor to be transposed consists; None: its own last two dimensions."""
    unit_rows: bool = False
    """Whether each row is divided by its length; for whole rows only."""
    times: float = 1.0
    """By what every number is multiplied."""
    negative_exp: bool = False
    """Whether every number x becomes -e^x."""

    beside: str | None = None
    """A piece of a name: only for files that have a tensor with that in its name."""
    beside_wide: bool = False
    """Whether the last dimension of that tensor must be more than 1."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names in the file, in order."""
        return tuple(self.tensor.replace("{e}", str(self.first + index)) for index in range(self.stack))


@dataclass(frozen=True)
class TensorSource:
    """One tensor of the model, and where weight files store it."""

    name: str
    """Canonical name, e.g. `layers.0.attention.q`."""
    shape: tuple[int, ...]
    """Rows and columns, or the length of a vector."""
    safetensors: tuple[Recipe, ...]
    """Recipes for safetensors files; the first one whose tensors the file has is used, and of several for the same
    tensors the first one that fits their shapes."""
    gguf: tuple[Recipe, ...]
    """Recipes for GGUF files, used the same way."""
    format: WeightFormat = WeightFormat.F32
    """Its format in memory, from the spec."""

    @property
    def is_of_adapters(self) -> bool:
        """Whether no file of the model has it: adapters have, and until one is loaded, it is zeros."""
        return not self.safetensors and not self.gguf


@dataclass(frozen=True)
class WeightPlan:
    """One weight as the kernels of target metal read it, with the graph's shape and type."""

    name: str
    """Name of the buffer in the plan's launches."""
    shape: tuple[int, ...]
    dtype: DType
    parts: tuple[TensorSource, ...]
    """The tensors that make it up, concatenated along axis 0 in this order."""

    @property
    def is_of_adapters(self) -> bool:
        """See `TensorSource.is_of_adapters`."""
        return self.parts[0].is_of_adapters

    @property
    def layout(self) -> WeightLayout:
        """The layout of the weight's buffer: where the rows of its parts lie."""
        columns = self.shape[1] if len(self.shape) == 2 else 1
        return layout_of([(part.format, part.shape[0]) for part in self.parts], columns)

    @property
    def size_bytes(self) -> int:
        """The size of that buffer."""
        return self.layout.size_bytes
