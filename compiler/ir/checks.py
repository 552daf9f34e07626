"""Checks that the shape rules of several op kinds share."""

from collections.abc import Iterable, Sequence

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import VALUES, cache_row_bytes
from mlxr.compiler.ir.tensor import Dim, Tensor, Tensors


class RuleError(Exception):
    """A shape rule does not hold; the verifier turns it into a GraphError that names the op."""


def require(condition: bool, message: str) -> None:
    """Raises RuleError with the message unless the condition holds."""
    if not condition:
        raise RuleError(message)


def require_positive(name: str, value: float | None) -> None:
    """Checks that an attribute is greater than 0, or None, which means that it is not used."""
    require(value is None or value > 0, f"attribute {name} is {value!r}; expected a number greater than 0")


def require_first(name: str, value: int | None) -> None:
    """Checks that an attribute is a place that something may begin at, or None, which means that it is not used."""
    require(value is None or value >= 0, f"attribute {name} is {value!r}; expected 0 or more")


def require_choice(name: str, value: str | None, choices: Sequence[str]) -> None:
    """Checks that an attribute is one of the choices."""
    require(value in choices, f"attribute {name} is {value!r}; expected one of {', '.join(choices)}")


def matrix(t: Tensors, port: str) -> tuple[Dim, int]:
    """Rows and columns of a matrix; the columns must be a number."""
    shape = t[port].shape
    if len(shape) != 2 or not isinstance(shape[1], int):
        raise RuleError(f"{port} is {list(shape)}; expected [rows, columns]")
    return shape[0], shape[1]


def weight_matrix(t: Tensors, port: str) -> tuple[int, int]:
    """Rows and columns of a weight matrix, both numbers."""
    rows, columns = matrix(t, port)
    assert isinstance(rows, int), "weights have no symbolic dims"
    return rows, columns


def require_vector(t: Tensors, port: str, width: int) -> None:
    """Checks the width of an optional vector."""
    if port in t:
        require(t[port].shape == (width,), f"{port} is {list(t[port].shape)}; expected [{width}]")


def require_integers(t: Tensors, port: str) -> None:
    """Checks that the elements of a port are i32."""
    require(t[port].dtype is DType.I32, f"{port} are {t[port].dtype}; expected i32")


def require_heads(t: Tensors, port: str, num_heads: int, head_dim: int) -> None:
    """Checks that the columns of a port are heads."""
    width = matrix(t, port)[1]
    require(width == num_heads * head_dim, f"{port} has {width} columns; expected {num_heads} x {head_dim}")


def require_first_columns(t: Tensors, port: str, columns: int) -> None:
    """Checks that a port has these columns; others may follow."""
    width = matrix(t, port)[1]
    require(width >= columns, f"{port} has {width} columns; expected at least {columns}")


def require_residual(t: Tensors, out: Tensor) -> None:
    """Checks that an optional residual has the shape and type of the result that it is added to."""
    if "residual" in t:
        residual = t["residual"]
        require(residual.shape == out.shape, f"residual is {list(residual.shape)}; expected {list(out.shape)}")
        require(residual.dtype == out.dtype, f"residual is {residual.dtype}, out is {out.dtype}")


def require_cache(t: Tensors, ports: Iterable[str], num_kv_heads: int, head_dim: int, v_dim: int | None = None) -> None:
    """Checks that the stores of these ports hold rows of `head_dim` elements for each KV head; of values, v_dim."""
    for port in ports:
        shape, dtype = t[port].shape, t[port].dtype
        head_dim = v_dim or head_dim if port == VALUES else head_dim
        expected = (num_kv_heads, cache_row_bytes(dtype, head_dim) // dtype.size_bytes)
        require(len(shape) == 5 and shape[3:] == expected, f"{port} is {list(shape)}; expected [..., {expected}]")


def require_states(t: Tensors, port: str, row: tuple[int, ...]) -> None:
    """Checks that the rows of a store of sequences are of this shape, and f32."""
    states = t[port]
    require(states.shape[2:] == row, f"{port} are {list(states.shape)}; expected rows of {list(row)}")
    require(states.dtype is DType.F32, f"{port} are {states.dtype}; expected f32")


def require_mean_squares(t: Tensors, rows: Dim) -> None:
    """Checks the shape and type of mean squares, if there are any."""
    if "mean_squares" in t:
        given = t["mean_squares"]
        require(given.shape == (rows, 2), f"mean_squares is {list(given.shape)}; expected [{rows}, 2]")
        require(given.dtype is DType.F32, f"mean_squares is {given.dtype}; expected f32")


def require_columns(t: Tensors, x: Tensor, first: int) -> None:
    """Raises RuleError unless the port `times` has the rows of x, and as many columns from `first` on."""
    rows, columns = matrix(t, "times")
    require(rows == x.shape[0], f"times has {rows} rows, and x {x.shape[0]}")
    width = x.shape[1]
    assert isinstance(width, int), "only rows have symbolic dims"
    require(0 <= first <= columns - width, f"times has {columns} columns; expected {width} from {first} on")
