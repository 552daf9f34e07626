"""The choice of experts by a router's logits."""

import dataclasses
from dataclasses import dataclass

from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import Router
from mlxr.compiler.ir.ops.experts import Route
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers
from mlxr.compiler.targets.environment import float_literal

_MOST_EXPERTS = 1024
"""The most experts for which `mlxr_route`, a function of templates/cpu/rows.h, has room on its stack."""


@dataclass(frozen=True)
class CpuRoute(CpuKernel):
    """The top_k experts of each token, [tokens, top_k] i32, and their weights, [tokens, top_k] f32.

    Attributes:
        num_experts, top_k: the number of experts, and the number of experts of a token.
        router: the function that gives the weights. `softmax_topk`: softmax over all experts; `topk_softmax`: softmax
            over the chosen experts; `sigmoid`: the sigmoid of each logit.
        bias: whether a bias, [num_experts], is added to the scores that choose experts; it does not change weights.
        normalise: whether the weights of a token are divided by their sum.
        scale: factor of the weights.
        groups, top_groups, judged_by, first_expert, owned: see `Route`.
        scales: whether experts have factors of their weights, [num_experts].
    """

    template = "route.jinja"
    num_experts: int
    top_k: int
    router: Router
    bias: bool
    normalise: bool
    scale: float
    groups: int = 1
    top_groups: int = 1
    judged_by: int = 1
    first_expert: int | None = None
    owned: int | None = None
    scales: bool = False

    @property
    def params(self) -> tuple[Param, ...]:
        """x, bias, scales, experts, weights."""
        bias = (Param("bias", "vector"),) if self.bias else ()
        scales = (Param("scales", "vector"),) if self.scales else ()
        return (Param("x", "input"), *bias, *scales, Param("experts", "output_indices"), Param("weights", "output"))

    @property
    def literals(self) -> str:
        """The numbers of the choice, as arguments of `mlxr_route`."""
        steps = f"MLXR_{self.router.upper()}, {int(self.normalise)}, {float_literal(self.scale)}"
        return f"{self.num_experts}, {self.top_k}, {steps}, {self.groups}, {self.top_groups}, {self.judged_by}"

    @property
    def formula(self) -> str:
        """The formula, for the head of the function."""
        steps = f"{self.router}, the best {self.top_k} of {self.num_experts}"
        if self.groups > 1:
            steps += f" in the best {self.top_groups} of {self.groups} groups"
        return f"{self.label}: {steps}{', normalised' if self.normalise else ''}, times {self.scale}{self._own}"

    @property
    def _own(self) -> str:
        if self.first_expert is None:
            return ""
        return f"; experts are counted from {self.first_expert}, and those beyond the {self.owned} of this rank are -1"


@lowers(Route)
def lower_route(lowering: CpuLowering, op: Op, attrs: Route) -> None:
    """Adds the call for an op.

    Raises:
        PlanError: there are too many experts.
    """
    kernel = route_kernel(op, attrs, lowering.width(op, "x"), has_bias="bias" in op.inputs)
    lowering.add_call(op, dataclasses.replace(kernel, scales="scales" in op.inputs))


def route_kernel(op: Op, attrs: Route, num_experts: int, *, has_bias: bool) -> CpuRoute:
    """The kernel of an op's choice among so many experts.

    Raises:
        PlanError: there are too many experts.
    """
    if num_experts > _MOST_EXPERTS:
        raise PlanError(f"op {op.name!r} routes to {num_experts} experts; target cpu has at most {_MOST_EXPERTS}")
    fields = {field.name: getattr(attrs, field.name) for field in dataclasses.fields(attrs)}
    return CpuRoute(label="route", num_experts=num_experts, bias=has_bias, **fields)
