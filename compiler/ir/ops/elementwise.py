"""Ops that work element by element."""

from dataclasses import dataclass
from typing import ClassVar, get_args

from mlxr.compiler.ir.checks import require, require_choice, require_columns, require_positive, require_vector
from mlxr.compiler.ir.division import PARTIAL, WHOLE, Holding, Holdings, alike, require_whole
from mlxr.compiler.ir.op_kind import SOURCE_STAGES, ActivationKind, Division, OpKind
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.spec.share import Share


class Elementwise(OpKind):
    """An op whose result has the shape and type of its input x."""

    family = "elementwise"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    stages = SOURCE_STAGES

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x -> out like x."""
        return {"out": t["x"]}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same, of what the rank has."""
        return Division(self, alike(has, *has))


class OfTwo(Elementwise):
    """An op whose inputs a and b and result have the same shape and type."""

    inputs = ("a", "b")

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From a and b alike -> out like them."""
        require(t["a"] == t["b"], f"a is {t['a']}, b is {t['b']}; expected the same")
        return {"out": t["a"]}


@dataclass(frozen=True)
class Activation(Elementwise):
    """An activation function.

    Attributes:
        kind: the function.
    """

    name = "activation"
    summary = "silu, gelu or relu"

    kind: ActivationKind


class Xielu(Elementwise):
    """An activation with two learned numbers of its layer, p = softplus(alpha_p) and n = 0.5 + softplus(alpha_n)."""

    name = "xielu"
    summary = "x > 0: p x^2 + x / 2; else n (exp(min(x, -1e-6)) - 1 - x) + x / 2"
    inputs = ("x", "alpha_p", "alpha_n")

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x, alpha_p [1], alpha_n [1] -> out like x."""
        require_vector(t, "alpha_p", 1)
        require_vector(t, "alpha_n", 1)
        return super().infer(t)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same, of what the rank has of x."""
        require_whole(has, "alpha_p", "alpha_n")
        return Division(self, has["x"])


class Multiply(OfTwo):
    """A product."""

    name = "multiply"
    summary = "a * b"


@dataclass(frozen=True)
class SwigluOai(OfTwo):
    """The gated activation of a (gate) and b (up).

    Attributes:
        limit: clamps a to at most limit, and b to +-limit; None for no limit.
    """

    name = "swiglu_oai"
    summary = "(b + 1) * a * sigmoid(1.702 a), a at most limit, b within +-limit"

    limit: float | None

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From a and b alike -> out like them."""
        require_positive("limit", self.limit)
        return super().infer(t)


@dataclass(frozen=True)
class ClampedGate(OfTwo):
    """A product of an activated gate, a, and b (up), both bounded.

    Attributes:
        kind: the activation.
        limit: the gate is at most this once it is activated, and b within +- this.
    """

    name = "clamped_gate"
    summary = "min(act(a), limit) * b, b within +-limit"

    kind: ActivationKind
    limit: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From a and b alike -> out like them."""
        require_choice("kind", self.kind, get_args(ActivationKind))
        require_positive("limit", self.limit)
        return super().infer(t)


@dataclass(frozen=True)
class Add(OfTwo):
    """A sum.

    Attributes:
        alpha: factor of b.
    """

    name = "add"
    summary = "a + alpha * b"
    linear = ("a", "b")

    alpha: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From a and b alike -> out like them."""
        require_positive("alpha", self.alpha)
        return super().infer(t)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Only the first rank adds a whole value to a partial sum; the others keep what they have of the sum."""
        if has["a"] == has["b"] or share.adds_wholes:
            return Division(self, _sum_of(has))
        if has["a"].is_partial:
            return Division(None, _sum_of(has), {"x": "a"})
        return Division(None if self.alpha == 1 else Scale(self.alpha), _sum_of(has), {"x": "b"})


@dataclass(frozen=True)
class Scale(Elementwise):
    """A product with a number.

    Attributes:
        factor: the number.
    """

    name = "scale"
    summary = "factor * x"
    linear = ("x",)

    factor: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x -> out like x."""
        require_positive("factor", self.factor)
        return super().infer(t)


@dataclass(frozen=True)
class SoftCap(Elementwise):
    """A soft cap.

    Attributes:
        cap: the bound of the results.
    """

    name = "soft_cap"
    summary = "cap * tanh(x / cap)"

    cap: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x -> out like x."""
        require_positive("cap", self.cap)
        return super().infer(t)


@dataclass(frozen=True)
class Clamp(Elementwise):
    """A bound of magnitudes.

    Attributes:
        limit: the greatest magnitude.
    """

    name = "clamp"
    summary = "x within +-limit"

    limit: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x -> out like x."""
        require_positive("limit", self.limit)
        return super().infer(t)


class ScaleBy(Elementwise):
    """A product with a learned number."""

    name = "scale_by"
    summary = "x * weight[0]"
    inputs = ("x", "weight")
    linear = ("x",)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x, weight [1] -> out like x."""
        require_vector(t, "weight", 1)
        return {"out": t["x"]}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same of what the rank has."""
        require_whole(has, "weight")
        return Division(self, has["x"])


@dataclass(frozen=True)
class MultiplyColumns(Elementwise):
    """A product with some columns of another value.

    Attributes:
        first: the first of these columns; they are as many as x has.
    """

    name = "multiply_columns"
    summary = "x * times[:, first:]"
    inputs = ("x", "times")

    first: int

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], times [tokens, columns] -> out like x."""
        require_columns(t, t["x"], self.first)
        return {"out": t["x"]}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same at every rank."""
        require_whole(has, *has)
        return Division(self, WHOLE)


def _sum_of(has: Holdings) -> Holding:
    """What a rank has of a sum."""
    if has["a"] == has["b"]:
        return has["a"]
    require({has["a"], has["b"]} == {WHOLE, PARTIAL}, f"a rank has {has['a']} of a, and {has['b']} of b")
    return PARTIAL
