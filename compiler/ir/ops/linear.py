"""Products with a weight matrix."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_columns,
    require_positive,
    require_residual,
    require_vector,
    weight_matrix,
)
from mlxr.compiler.ir.division import PARTIAL, Holdings, split
from mlxr.compiler.ir.op_kind import FUSED_STAGES, Division, FinishKind, NormKind
from mlxr.compiler.ir.ops.product import (
    ADAPTER_PORTS,
    ADDED_PORTS,
    AddedBlock,
    Finish,
    InputNorm,
    Product,
    check_activation,
    check_adapter,
    check_added,
    check_input_norm,
    input_norm,
)
from mlxr.compiler.ir.tensor import Dim, Tensor, Tensors
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class Linear(Product):
    """A plain product."""

    name = "linear"
    summary = "x @ weight.T + bias + low @ lift[adapter]"
    inputs = ("x", "weight")
    optional = ("bias", *ADAPTER_PORTS)

    dtype: DType

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], weight [features, width], bias [features] -> out [tokens, features]."""
        check_adapter(t, _product(t))
        return {"out": Tensor(_product(t), self.dtype)}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Some rows of the weight give columns of the result; some columns, of x and of it, give a partial sum.

        The first rank alone adds the bias to a sum.
        """
        rows, columns = has["weight"].rows, has["weight"].columns
        require("low" not in has, "ranks have no adapters")
        require(has["x"] == split(columns), f"a rank has {has['x']} of x, and {split(columns)} of the weight's columns")
        if columns is None:
            require("bias" not in has or has["bias"].rows == rows, "a rank has a bias of other rows than the weight")
            return Division(self, split(rows))
        require(rows is None, "a rank has some rows and some columns of the weight")
        ports = [port for port in has if port != "bias" or share.adds_wholes]
        return Division(self, PARTIAL, {port: port for port in ports})


@dataclass(frozen=True)
class Projection(Product):
    """A product with the ops that the passes fused into it; with the defaults, a linear op.

    Attributes:
        dtype: the type of its result.
        eps, norm_kind: epsilon and kind of the norm before it; None without a norm.
        activation, gated, limit, residual_scale, out_scale, out_cap, out_limit: see `Finish`.
        added_eps, added_factor: of what a block adds to x first, see `AddedBlock`; `stream` is the sum. None: nothing.
        columns: the columns of x that are normalised and multiplied, the first ones; None: all of them.
    """

    name = "projection"
    summary = (
        "y = act(norm(x[rows]) @ weight.T + bias) * out_scale, soft capped, clamped, times columns; residual + "
        "residual_scale * sigmoid(gate) * y; x may be stream = (x + added_factor * norm(added)) * added_scale"
    )
    inputs = ("x", "weight")
    optional = (
        *("norm", "norm_bias", "bias", "residual", "rows", "gate", "alpha_p", "alpha_n", "times"),
        *(*ADDED_PORTS, *ADAPTER_PORTS),
    )
    optional_outputs = ("stream",)
    stages = FUSED_STAGES

    dtype: DType
    eps: float | None = None
    norm_kind: NormKind | None = None
    activation: FinishKind | None = None
    gated: bool = False
    limit: float | None = None
    residual_scale: float = 1.0
    out_scale: float = 1.0
    out_cap: float | None = None
    out_limit: float | None = None
    times_first: int | None = None
    added_eps: float | None = None
    added_factor: float = 1.0
    columns: int | None = None

    @property
    def added(self) -> AddedBlock | None:
        """See `Product`."""
        return None if self.added_eps is None else AddedBlock(self.added_eps, self.added_factor)

    @property
    def norm(self) -> InputNorm | None:
        """See `Product`."""
        return input_norm(self.norm_kind, self.eps)

    @property
    def finish(self) -> Finish:
        """See `Product`."""
        return Finish(
            self.activation,
            self.gated,
            self.limit,
            self.residual_scale,
            self.out_scale,
            self.out_cap,
            self.out_limit,
            self.times_first,
        )

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """Like `Linear`, with a norm before it, and after it activation, scale, cap, columns, gate and residual."""
        t = {**t, "x": self._multiplied(t)}
        rows, features = _product(t)
        if "rows" in t:
            rows = t["rows"].shape[0]
        check_added(t, self.added_eps)
        check_input_norm(t, self.norm_kind, self.eps)
        check_adapter(t, (rows, features))
        features = self.finish.columns_of(features)
        check_activation(t, self.activation)
        require_positive("out_scale", self.out_scale)
        require_positive("out_cap", self.out_cap)
        require_positive("out_limit", self.out_limit)
        if "gate" in t:
            require(t["gate"].shape == (rows, 1), f"gate is {list(t['gate'].shape)}; expected {[rows, 1]}")
        out = Tensor((rows, features), self.dtype)
        require(("times" in t) == (self.times_first is not None), "times and times_first are given together")
        if self.times_first is not None:
            require_columns(t, out, self.times_first)
        require_residual(t, out)
        return {"out": out} if self.added is None else {"out": out, "stream": t["x"]}

    def _multiplied(self, t: Tensors) -> Tensor:
        """The columns of x that are multiplied."""
        rows, width = matrix(t, "x")
        if self.columns is None:
            return t["x"]
        require(self.norm is not None, "columns are given, but no norm")
        require(0 < self.columns <= width, f"x has {width} columns; expected {self.columns} or more")
        return Tensor((rows, self.columns), t["x"].dtype)


def _product(t: Tensors) -> tuple[Dim, int]:
    """Rows and columns of x @ weight.T + bias."""
    rows, width = matrix(t, "x")
    features, columns = weight_matrix(t, "weight")
    require(columns == width, f"weight has {columns} columns, x has {width}")
    require_vector(t, "bias", features)
    return rows, features
