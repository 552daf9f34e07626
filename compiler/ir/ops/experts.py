"""Mixtures of experts: the choice of experts, and products with the chosen experts' matrices."""

import math
from dataclasses import KW_ONLY, dataclass, fields, replace
from fractions import Fraction
from typing import ClassVar

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_integers,
    require_positive,
    require_residual,
    require_vector,
    weight_matrix,
)
from mlxr.compiler.ir.division import PARTIAL, WHOLE, Axis, Holdings, require_whole, split
from mlxr.compiler.ir.op_kind import FUSED_STAGES, SOURCE_STAGES, Division, FinishKind, NormKind, OpKind, Router
from mlxr.compiler.ir.ops.product import Finish, InputNorm, Product, check_input_norm, input_norm
from mlxr.compiler.ir.tensor import Dim, Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

SHARED_WEIGHTS = ("shared", "gate_weight")
"""Ports of a fused op for the weights of a shared expert: its matrix, and the row that weights its result."""


@dataclass(frozen=True)
class Route(OpKind):
    """The choice of experts by a router's logits.

    Attributes:
        top_k: experts of a token.
        router: the function that gives the weights: `softmax_topk`: softmax over all logits; `topk_softmax`: softmax
            over the chosen logits; `sigmoid`: the sigmoid of each logit.
        normalise: whether the chosen experts' weights are divided by their sum.
        scale: factor of the weights.
        groups, top_groups, judged_by: a token's experts are all of its top_groups best of `groups` groups of
            neighbouring experts; a group is judged by the sum of its judged_by best scores, 1 or 2, biases included.
        first_expert, owned: of a rank that has a part of the experts, the first one and their number. Choice and
            weights are those of all experts; an expert of the rank is then counted from its first one, and any other
            is -1. None: the rank has all experts.
    """

    name = "route"
    summary = "the top_k experts of each token, best first, and their weights"
    family = "gather"
    inputs = ("x",)
    optional = ("bias", "scales")
    outputs = ("experts", "weights")

    top_k: int
    router: Router
    normalise: bool
    scale: float
    groups: int = 1
    top_groups: int = 1
    judged_by: int = 1
    first_expert: int | None = None
    owned: int | None = None

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, experts], bias and scales [experts] -> experts and weights [tokens, top_k], i32 and f32.

        A weight is multiplied by the scale of its expert at last.
        """
        rows, count = matrix(t, "x")
        require(1 <= self.top_k <= count, f"top_k is {self.top_k} of {count} experts")
        require_positive("scale", self.scale)
        require_vector(t, "bias", count)
        require_vector(t, "scales", count)
        self._check_groups(count)
        self._check_owned(count)
        return {"experts": Tensor((rows, self.top_k), DType.I32), "weights": Tensor((rows, self.top_k), DType.F32)}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """A few steps for each logit."""
        return OpWork(flops=NOT_COUNTED)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Every rank chooses from all experts, and then says which of the chosen ones it has."""
        require_whole(has, *has)
        if not share.is_divided:
            return Division(self, WHOLE)
        first, last = Axis("experts", matrix(t, "x")[1]).range_of(share)
        return Division(replace(self, first_expert=first, owned=last - first), WHOLE)

    def _check_groups(self, count: int) -> None:
        require(1 <= self.top_groups <= self.groups <= 32, f"top_groups is {self.top_groups} of {self.groups} groups")
        require(count % self.groups == 0, f"{count} experts are no {self.groups} groups of equal size")
        size = count // self.groups
        require(1 <= self.judged_by <= min(2, size), f"groups of {size} experts are judged by {self.judged_by}")
        require(self.top_groups * size >= self.top_k, f"{self.top_groups} groups have fewer than {self.top_k} experts")

    def _check_owned(self, count: int) -> None:
        first, owned = self.first_expert, self.owned
        require((first is None) == (owned is None), "first_expert and owned are given together")
        if first is not None and owned is not None:
            require(
                0 <= first < first + owned <= count,
                f"first_expert is {first} and owned {owned}; expected a range within the {count} experts",
            )


@dataclass(frozen=True)
class ExpertProduct(Product):
    """A product with the matrices of each token's chosen experts. One weight has the matrices of all experts.

    A choice of -1 is an expert of another rank: no weight is read for it. Where results are kept apart, its columns are
    zeros in the reference, and are not written by the targets, whose sums do not read them.

    Attributes:
        num_experts: experts in the weight; on a rank its own, which may be fewer than top_k.
        top_k: experts of a token.
        dtype: the type of its result.
    """

    num_experts: int
    top_k: int
    dtype: DType

    def check_choice(self, t: Tensors) -> tuple[Dim, int]:
        """Tokens, and rows of one expert; raises RuleError unless weight, bias and choice of experts fit."""
        rows, _ = matrix(t, "x")
        features, _ = weight_matrix(t, "weight")
        count = self.num_experts
        require(features % count == 0, f"weight has {features} rows; expected {count} experts of equal size")
        require_integers(t, "experts")
        shape = t["experts"].shape
        require(shape == (rows, self.top_k), f"experts are {list(shape)}; expected {[rows, self.top_k]}")
        require_vector(t, "bias", features)
        _check_weights(t, rows, self.top_k)
        return rows, features // count

    def routed(self, use: Use) -> int:
        """Experts that the router chooses from. On a rank that owns some they are more than the weight has.

        Choices of the others are then -1.
        """
        behind = use.behind.get("experts", {})
        logits = use.inputs.get("logits", behind.get("logits", behind.get("x")))
        return self.num_experts if logits is None else matrix({"x": logits}, "x")[1]

    def chosen_per_token(self, use: Use) -> Fraction:
        """The part of the experts that a token goes through; they are taken to be spread evenly over the ranks."""
        return Fraction(self.top_k, self.routed(use))

    def work(self, use: Use, dims: Dims) -> OpWork:
        """As for `Product`, of the chosen experts; tokens choose different ones as long as there are others."""
        experts, shared = self._elements(use)
        if experts + shared == 0:  # of a launch that prepares
            return OpWork(flops=NOT_COUNTED)
        chosen = experts * self.chosen_per_token(use)
        read = min(dims["tokens"] * chosen, Fraction(experts)) + shared
        return OpWork(flops=int(2 * (chosen + shared) * dims["tokens"]), weight_tokens=read / (chosen + shared))

    def weights_per_token(self, use: Use) -> Fraction:
        """The chosen experts, and what every token goes through."""
        experts, shared = self._elements(use)
        whole = experts + shared
        return (experts * self.chosen_per_token(use) + shared) / whole if whole else Fraction(1)

    def _elements(self, use: Use) -> tuple[int, int]:
        """Elements of the experts' weight, and of those that every token is multiplied with."""
        ports = [port for port in ("weight", *SHARED_WEIGHTS) if port in use.inputs]
        of = {port: math.prod(weight_matrix(use.inputs, port)) for port in ports}
        experts = of.pop("weight", 0)
        return experts, sum(of.values())


class ExpertLinear(ExpertProduct):
    """A plain product for each chosen expert; with weights, of x times the expert's weight."""

    name = "expert_linear"
    summary = "weights * x @ weight[expert].T + bias[expert] for each chosen expert"
    inputs = ("x", "weight", "experts")
    optional = ("bias", "weights")
    stages = SOURCE_STAGES

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, K] or [tokens, top_k * K], weight [E * F, K], experts, bias, weights -> [tokens, top_k F]."""
        rows, features = self.check_choice(t)
        width, columns, top_k = matrix(t, "x")[1], matrix(t, "weight")[1], self.top_k
        require(
            width in (columns, top_k * columns), f"x has {width} columns; expected {columns} or {top_k} x {columns}"
        )
        return {"out": Tensor((rows, top_k * features), self.dtype)}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The results of the rank's experts; those of others are not its own."""
        experts = has["weight"].rows
        own = None if experts is None else replace(experts, size=1)
        require(has["x"] in (WHOLE, split(own)), f"a rank has {has['x']} of x, and {has['weight']} of the weight")
        require_whole(has, "experts", "weights")
        if experts is None:
            return Division(self, WHOLE)
        return Division(replace(self, num_experts=experts.count_of(share)), split(own))


@dataclass(frozen=True)
class ExpertSum(OpKind):
    """The sum over a token's experts, by their weights if there are any.

    A choice of -1 adds nothing: its columns are zeros.

    Attributes:
        top_k: experts of a token.
    """

    name = "expert_sum"
    summary = "the weighted sum of the experts' results"
    family = "elementwise"
    inputs = ("x",)
    optional = ("weights",)
    stages = SOURCE_STAGES

    top_k: int

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, top_k * F], weights [tokens, top_k] -> out [tokens, F]."""
        rows, width = matrix(t, "x")
        top_k = self.top_k
        _check_weights(t, rows, top_k)
        require(width % top_k == 0, f"x has {width} columns; expected {top_k} experts of equal size")
        return {"out": Tensor((rows, width // top_k), t["x"].dtype)}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Of the rank's experts: a partial sum."""
        require_whole(has, "weights")
        return Division(self, WHOLE if has["x"].is_whole else PARTIAL)


@dataclass(frozen=True)
class ExpertProjection(ExpertProduct):
    """The first product of each chosen expert, with its activation; with weights, of x times the expert's weight.

    Attributes:
        num_experts, top_k, dtype: see `ExpertProduct`.
        eps, norm_kind: epsilon and kind of the norm before it; None without a norm.
        gated, limit, activation: see `Finish`.
    """

    name = "expert_projection"
    summary = "act(weights * norm(x) @ weight[expert].T + bias[expert]) for each chosen expert"
    inputs = ("x", "weight", "experts")
    optional: ClassVar[tuple[str, ...]] = ("norm", "norm_bias", "bias", "weights")
    stages = FUSED_STAGES

    eps: float | None = None
    norm_kind: NormKind | None = None
    gated: bool = False
    limit: float | None = None
    activation: FinishKind | None = None

    @property
    def norm(self) -> InputNorm | None:
        """See `Product`."""
        return input_norm(self.norm_kind, self.eps)

    @property
    def finish(self) -> Finish:
        """See `Product`."""
        return Finish(self.activation, self.gated, self.limit)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, K], weight [E * F, K] ([gates; ups] where gated), experts -> out [tokens, top_k * F']."""
        rows, features = self.check_choice(t)
        width, columns = matrix(t, "x")[1], matrix(t, "weight")[1]
        require(width == columns, f"weight has {columns} columns, x has {width}")
        check_input_norm(t, self.norm_kind, self.eps)
        return {"out": Tensor((rows, self.top_k * self.finish.columns_of(features)), self.dtype)}


@dataclass(frozen=True)
class RoutedProjection(ExpertProjection):
    """The choice of experts, and the first product of each chosen expert; and of a shared one, if there is one.

    Attributes:
        num_experts, top_k, dtype, eps, norm_kind, gated, limit, activation: see `ExpertProjection`.
        router, normalise, scale, groups, top_groups, judged_by, first_expert, owned: see `Route`.
        weighs: whether x is multiplied by the chosen expert's weight; then the weights are no result.
        shared_limit: as `limit`, of the shared expert.

    The weights are multiplied by their experts' `expert_scales`. A shared expert may have a norm of its own, whose
    weight is `shared_norm`.
    """

    name = "routed_projection"
    summary = (
        "the top_k experts by logits, and their weights; act((weights *) norm(x) @ weight[expert].T + bias[expert]) of "
        "each, and act(norm(x) @ shared.T)"
    )
    inputs = ("x", "weight", "logits")
    optional = ("selection_bias", "expert_scales", "norm", "norm_bias", "bias", "shared_norm", *SHARED_WEIGHTS)
    outputs = ("out", "experts")
    optional_outputs = ("weights", "shared_out", "shared_gate")

    _: KW_ONLY
    router: Router
    normalise: bool
    scale: float
    groups: int
    top_groups: int
    judged_by: int
    first_expert: int | None
    owned: int | None
    weighs: bool
    shared_limit: float | None = None

    @property
    def shared_finish(self) -> Finish:
        """The steps after the sums of the shared expert."""
        return replace(self.finish, limit=self.shared_limit)

    @property
    def route(self) -> Route:
        """The choice alone, of the logits; its bias is `selection_bias`."""
        return Route(**{field.name: getattr(self, field.name) for field in fields(Route)})

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From logits [tokens, experts], selection_bias, x [tokens, K], weight [E * F, K], shared [S, K] and others.

        Gives experts and weights as `Route` does, out [tokens, top_k * F'], shared_out [tokens, S'], shared_gate
        [tokens, 1] of the row gate_weight [1, K].
        """
        ports = {"bias": "selection_bias", "scales": "expert_scales"}
        routed = {"x": t["logits"]} | {name: t[port] for name, port in ports.items() if port in t}
        require("expert_scales" not in t or not self.weighs, "expert_scales are bound, but the op gives no weights")
        outputs = self.route.infer(routed)
        outputs |= super().infer({**t, "experts": outputs["experts"]})
        if self.weighs:
            del outputs["weights"]
        (rows, width), gate = matrix(t, "x"), t.get("gate_weight")
        require_vector(t, "shared_norm", width)
        if "shared_norm" in t:
            plain = "norm" in t and "norm_bias" not in t and gate is None
            require(plain, "shared_norm is bound, but norm is not, or norm_bias or gate_weight")
        if "shared" in t:
            features, columns = weight_matrix(t, "shared")
            require(columns == width, f"shared has {columns} columns, x has {width}")
            outputs["shared_out"] = Tensor((rows, self.finish.columns_of(features)), self.dtype)
        if gate is not None:
            require("shared" in t, "gate_weight is bound but shared is not")
            require(gate.shape == (1, width), f"gate_weight is {list(gate.shape)}; expected {[1, width]}")
            outputs["shared_gate"] = Tensor((rows, 1), DType.F32)
        return outputs


@dataclass(frozen=True)
class ExpertCombine(ExpertProduct):
    """The last product of each chosen expert, and the sum over them, by their weights if there are any.

    A choice of -1 adds nothing. A shared expert's result, times the sigmoid of its gate if it has one, is one more
    addend.

    Attributes:
        num_experts, top_k, dtype: see `ExpertProduct`.
        residual_scale: see `Finish`.
        shared_apart: whether the shared expert's result is `shared_out`, and no addend.
    """

    name = "expert_combine"
    summary = (
        "residual + residual_scale * (sum of weights * (x @ weight[expert].T + bias[expert]) + "
        "sigmoid(shared_gate) * (shared_x @ shared.T))"
    )
    inputs = ("x", "weight", "experts")
    optional = ("weights", "bias", "residual", "shared_x", "shared", "shared_gate")
    optional_outputs = ("shared_out",)
    stages = FUSED_STAGES

    residual_scale: float = 1.0
    shared_apart: bool = False

    @property
    def finish(self) -> Finish:
        """See `Product`."""
        return Finish(residual_scale=self.residual_scale)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, top_k * F], weight [E * H, F], experts, weights, bias [E * H], residual -> [tokens, H]."""
        rows, features = self.check_choice(t)
        width, columns, top_k = matrix(t, "x")[1], matrix(t, "weight")[1], self.top_k
        require(width == top_k * columns, f"x has {width} columns; expected {top_k} x {columns}")
        out = Tensor((rows, features), self.dtype)
        require_residual(t, out)
        self._check_shared(t, rows, features)
        return {"out": out, "shared_out": out} if self.shared_apart else {"out": out}

    def _check_shared(self, t: Tensors, rows: Dim, features: int) -> None:
        require(("shared" in t) == ("shared_x" in t), "shared and shared_x are given together")
        alone = "shared" in t and not {"shared_gate", "residual"} & t.keys()
        require(alone or not self.shared_apart, "shared_apart, but no shared, or with shared_gate or residual")
        if "shared" in t:
            own, width = weight_matrix(t, "shared"), matrix(t, "shared_x")[1]
            require(own == (features, width), f"shared is {list(own)}; expected {[features, width]}")
        if "shared_gate" in t:
            shape = t["shared_gate"].shape
            require("shared" in t, "shared_gate is bound but shared is not")
            require(shape == (rows, 1), f"shared_gate is {list(shape)}; expected {[rows, 1]}")


def _check_weights(t: Tensors, rows: Dim, top_k: int) -> None:
    if "weights" in t:
        shape = t["weights"].shape
        require(shape == (rows, top_k), f"weights are {list(shape)}; expected {[rows, top_k]}")
