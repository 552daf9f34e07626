"""Calls other than generated kernels: MLX's functions that replace kernels, and exchanges with ranks and the CPU."""

from typing import Annotated, Literal

from pydantic import Field

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.ops.collectives import CollectiveKind
from mlxr.compiler.ir.ops.product import Finish, InputNorm
from mlxr.compiler.spec.record import Record


class LibraryPort(Record):
    """An input of a library call; names in its shape stand for dims of the batch."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]


class MatmulCall(Record):
    """MLX's matmul: norm(x[rows]) @ weight.T, followed by a projection's epilogue.

    x, weight, norm and result have one type.

    Attributes:
        label: the name under which hosts count it.
        ports: `x` and `weight`, and whichever of `norm`, `norm_bias`, `bias`, `residual`, `rows` and `gate` the op
            binds.
        dtype: type of the result.
        norm: the norm of x; None without a norm.
        finish: the steps after the sums.
        columns: the columns of x that are normalised and multiplied, the first ones; None: all of them.
    """

    function: Literal["matmul"]
    label: str
    ports: tuple[LibraryPort, ...]
    dtype: DType
    norm: InputNorm | None = None
    finish: Finish = Finish()
    columns: int | None = None


class AttentionCall(Record):
    """MLX's causal attention of one sequence; the queries belong to its last tokens.

    Attributes:
        label: the name under which hosts count it.
        ports: `queries` [1, tokens, heads, head_dim], rotated but not scaled; `keys` and `values`
            [1, kv_heads, context, head_dim]; `sinks` [heads], if the model has sinks. All have one type.
        scale: factor of the scores.
    """

    function: Literal["attention"]
    label: str
    ports: tuple[LibraryPort, ...]
    scale: float


class CollectiveCall(Record):
    """An exchange of rows with other ranks. Unlike the other calls it replaces no kernels, and every host makes it.

    Attributes:
        function: what is exchanged.
        label: the name under which hosts count it.
        ports: `x`; on a rank that contributes nothing, `after`: a value that has to be computed before.
        dtype: type of the rows.
        width: columns of the result.
    """

    function: CollectiveKind
    label: str
    ports: tuple[LibraryPort, ...]
    dtype: DType
    width: int


class HandoverCall(Record):
    """One end of what a card and the CPU, which has some layers' experts, do in turns. It replaces no kernels either.

    Attributes:
        function: `give`: rows, chosen experts and their weights go to the CPU; `take`: the experts' sum comes back.
        label: the name under which hosts count it.
        ports: of `give` `x`, `experts` and, where experts have weights, `weights`; of `take` `after`, what was given,
            and `residual`, if the sum is added to one.
        dtype: type of the result of `take`.
        width: columns of the rows, or of the sum.
        place: of `give`, how many come before it in a step.
        residual_scale: factor of the sum where it is added to a residual.
    """

    function: Literal["give", "take"]
    label: str
    ports: tuple[LibraryPort, ...]
    dtype: DType
    width: int
    place: int = 0
    residual_scale: float = 1.0


LibraryCall = Annotated[MatmulCall | AttentionCall | CollectiveCall | HandoverCall, Field(discriminator="function")]
"""A call of something other than a generated kernel."""


class WeightCast(Record):
    """A weight in another type, which hosts convert once, at load.

    Attributes:
        name: the name under which launches bind it.
        weight: the weight's own name.
        dtype: the other type.
    """

    name: str
    weight: str
    dtype: DType
