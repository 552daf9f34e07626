"""The choice of experts by a router's logits."""

import dataclasses
from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import Router
from mlxr.compiler.ir.ops.experts import Route
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns, row_count


@dataclass(frozen=True)
class RouteKernel(MetalKernel):
    """The top_k experts of each token, best first, and their weights.

    Between equal experts the one with the lower index comes first. So the choice does not depend on how lanes share the
    experts (an argpartition promises no order). A logit that is not a number counts as minus infinity. Without a
    selection bias the kernel compares the logits themselves, so that rounding makes no ties. With one it compares
    softmax(logits) + bias in `softmax_topk`, logits + bias in `topk_softmax`, and sigmoid(logits) + bias in `sigmoid`.
    With groups it compares these scores too.

    Attributes:
        num_experts: columns of x [tokens, num_experts] f32.
        top_k: experts chosen for a token.
        router: the function that gives the weights: `softmax_topk`: softmax over all logits; `topk_softmax`: softmax
            over the chosen logits; `sigmoid`: the sigmoid of each logit.
        bias: element type of the selection bias [num_experts]; None: there is no bias.
        normalise: whether the weights are divided by their sum.
        scale: factor of the weights.
        groups, top_groups, judged_by, first_expert, owned: see `Route`.
        scales: element type of the experts' factors of their weights, [num_experts]; None: they have none.
    """

    template = "route.metal.jinja"
    num_experts: int
    top_k: int
    router: Router
    bias: DType | None
    normalise: bool
    scale: float
    groups: int = 1
    top_groups: int = 1
    judged_by: int = 1
    first_expert: int | None = None
    owned: int | None = None
    scales: DType | None = None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The logits and, if there are such, the selection bias and the experts' factors."""
        others = (("bias", self.bias), ("scales", self.scales))
        return (("x", DType.F32), *((name, dtype) for name, dtype in others if dtype))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The chosen experts and their weights."""
        return (("experts", DType.I32), ("weights", DType.F32))

    @property
    def threads(self) -> int:
        """One simdgroup, which takes one token."""
        return SIMD_WIDTH

    @property
    def per_lane(self) -> int:
        """Experts of a lane: those with the indices lane + 32 * i."""
        return round_up(self.num_experts, SIMD_WIDTH) // SIMD_WIDTH

    @property
    def whole(self) -> bool:
        """Whether all lanes have the same number of experts."""
        return self.num_experts % SIMD_WIDTH == 0

    @property
    def by_scores(self) -> bool:
        """Whether scores choose the experts, and not the logits."""
        return self.bias is not None or self.groups > 1

    def sharing(self, threads: int) -> int:
        """The threads of a threadgroup that share the choice by ranks, with equal parts of it; 0: they cannot."""
        count, parts = self.num_experts, 1
        while 2 * parts * count <= threads and count % (8 * parts) == 0:
            parts *= 2
        can = count % SIMD_WIDTH == 0 and count <= threads and self.top_k <= SIMD_WIDTH and not self.by_scores
        return parts * count if can else 0

    @property
    def kept(self) -> int:
        """Chosen experts whose weights a lane keeps: the lane rank % 32 keeps the expert of that rank."""
        return round_up(self.top_k, SIMD_WIDTH) // SIMD_WIDTH


@lowers(Route)
def lower_route(lowering: MetalLowering, op: Op, attrs: Route) -> None:
    """Adds the launch of a choice of experts."""
    x = lowering.value(op, "x")
    kernel = route_kernel(attrs, num_columns(x), lowering.optional_dtype(op, "bias"))
    kernel = dataclasses.replace(kernel, scales=lowering.optional_dtype(op, "scales"))
    lowering.emit(op, kernel, (row_count(x),), {port: op.outputs[port] for port in ("experts", "weights")})


def route_kernel(attrs: Route, num_experts: int, bias: DType | None) -> RouteKernel:
    """The kernel of a choice among so many experts, with a selection bias of that type if there is one."""
    fields = {field.name: getattr(attrs, field.name) for field in dataclasses.fields(attrs)}
    return RouteKernel("route", num_experts=num_experts, bias=bias, **fields)
