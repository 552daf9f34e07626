"""The base of the op kinds that multiply with a weight matrix: the norm before it, and the steps after it."""

import math
from dataclasses import dataclass
from typing import get_args

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_choice,
    require_positive,
    require_vector,
    weight_matrix,
)
from mlxr.compiler.ir.op_kind import ActivationKind, FinishKind, NormKind, OpKind
from mlxr.compiler.ir.tensor import Dim, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use


@dataclass(frozen=True)
class InputNorm:
    """The norm of x before a product."""

    kind: NormKind
    eps: float


@dataclass(frozen=True)
class AddedBlock:
    """What a block adds to x before a product: x = (x + factor * norm(added)) * added_scale.

    The norm is that of root mean squares. With `second`, added is norm(added) + norm(second) first, of the same kind.
    """

    eps: float
    factor: float


@dataclass(frozen=True)
class Finish:
    """The steps after the sums of a product.

    Attributes:
        activation: the activation function; None for none.
        gated: whether the weight has the gate's rows and then the up projection's rows, so that the result is
            act(gate) * up.
        limit: gate <= limit, before swiglu_oai and after other activations, and |up| <= limit; None for no limit.
        residual_scale: factor of the result where it is added to the residual.
        out_scale: factor of the activated sums.
        out_cap: turns the scaled sums into out_cap * tanh(sum / out_cap); None for no cap.
        out_limit: the greatest magnitude of what that gives; None for no limit.
        times_first: the first column of `times` that multiplies the bounded result; None for none.
    """

    activation: FinishKind | None = None
    gated: bool = False
    limit: float | None = None
    residual_scale: float = 1.0
    out_scale: float = 1.0
    out_cap: float | None = None
    out_limit: float | None = None
    times_first: int | None = None

    def columns_of(self, features: int) -> int:
        """Columns of the result, from the weight's rows `features`; raises RuleError if the activation does not fit."""
        if self.activation is None:
            require(not self.gated, "gated is true but there is no activation")
        elif not self.gated:
            require_choice("activation", self.activation, (*get_args(ActivationKind), "xielu"))
        if not self.gated:
            require(self.limit is None, f"limit is {self.limit} but there is no gate")
            return features
        require(self.activation != "xielu", "gated is true, and xielu has no gate")
        require(features % 2 == 0, f"gate and up rows are {features}; expected an even number")
        return features // 2


class Product(OpKind):
    """An op that multiplies x with a weight matrix.

    Attributes:
        dtype: the type of its result.
    """

    family = "matmul"
    dtype: DType

    @property
    def norm(self) -> InputNorm | None:
        """The norm of x before the product; None without one."""
        return None

    @property
    def added(self) -> AddedBlock | None:
        """What is added to x before its norm; None for nothing."""
        return None

    @property
    def finish(self) -> Finish:
        """The steps after the sums."""
        return Finish()

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Two FLOPs for each row and each element of the weight that the row is multiplied with."""
        used = math.prod(weight_matrix(use.inputs, "weight"))
        if "rows" not in use.inputs:
            return OpWork(flops=2 * used * dims["rows" if use.inputs["x"].shape[0] == "rows" else "tokens"])
        return OpWork(flops=2 * used * dims["rows"], rows={"x": dims["rows"]})


def check_activation(t: Tensors, activation: FinishKind | None) -> None:
    """Raises RuleError unless the learned numbers of an activation are bound where it has some."""
    for port in ("alpha_p", "alpha_n"):
        require((port in t) == (activation == "xielu"), f"{port} is bound where the activation is xielu")
        require_vector(t, port, 1)


def input_norm(kind: NormKind | None, eps: float | None) -> InputNorm | None:
    """The norm that these attributes describe; without a norm both are None."""
    return None if kind is None or eps is None else InputNorm(kind, eps)


ADDED_PORTS = ("added", "added_norm", "own_norm", "second", "second_norm", "added_scale")
"""Ports of what a block adds to x: its result, and the weight of its norm; with a second result, the weight of the norm
of the first one alone, the second one, and the weight of its norm; and the number that multiplies the sum."""


ADAPTER_PORTS = ("low", "lift", "adapter_ids")
"""Ports of what an adapter adds to the sums: x in low rank, by adapter the matrices that make it wide again, and each
token's adapter. Between passes only: `SplitAdapters` makes ops of their own of them."""


def check_adapter(t: Tensors, sums: tuple[Dim, int]) -> None:
    """Raises RuleError unless the ports of what an adapter adds fit the sums [tokens, features]."""
    bound = t.keys() & set(ADAPTER_PORTS)
    require(len(bound) in (0, len(ADAPTER_PORTS)), f"{', '.join(ADAPTER_PORTS)} are bound together")
    if bound:
        tokens, features = sums
        (elements,) = t["lift"].shape
        require(t["low"].shape[0] == tokens == t["adapter_ids"].shape[0], "the rows of sums, low and ids differ")
        require(isinstance(elements, int) and elements % features == 0, f"lift has {elements} elements")


def check_added(t: Tensors, eps: float | None) -> None:
    """Raises RuleError unless the ports of what is added to x fit x and the attributes."""
    if eps is None:
        require(not t.keys() & set(ADDED_PORTS), "ports of what is added are bound but added_eps is none")
        return
    require_positive("added_eps", eps)
    require("added" in t and "added_norm" in t, "there is added_eps but added or added_norm is not bound")
    pair = {"own_norm", "second", "second_norm"}
    require(len(t.keys() & pair) in (0, len(pair)), f"{', '.join(sorted(pair))} are bound together")
    width = matrix(t, "x")[1]
    for port in ("added", "second"):
        require(t.get(port, t["x"]) == t["x"], f"{port} is not like x")
    for port in ("added_norm", "own_norm", "second_norm"):
        require_vector(t, port, width)
    require_vector(t, "added_scale", 1)


def check_input_norm(t: Tensors, kind: NormKind | None, eps: float | None) -> None:
    """Raises RuleError unless the ports `norm` and `norm_bias`, which a norm may lack, fit x and the attributes."""
    if eps is None and kind is None:
        require("norm" not in t and "norm_bias" not in t, "norm or norm_bias is bound but there is no norm")
        return
    width = matrix(t, "x")[1]
    require_vector(t, "norm", width)
    require_vector(t, "norm_bias", width)
    require(eps is not None, "there is a norm but eps is none")
    require_choice("norm_kind", kind, get_args(NormKind))
