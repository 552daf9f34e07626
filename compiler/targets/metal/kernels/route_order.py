"""The choice of experts of few tokens, its order, and the norm of what the experts read, in one launch."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.kernel import MetalKernel
from mlxr.compiler.targets.metal.kernels.expert_order import TILE_FIELDS, ExpertOrderKernel
from mlxr.compiler.targets.metal.kernels.norm import NormKernel
from mlxr.compiler.targets.metal.kernels.normalise import normed_name
from mlxr.compiler.targets.metal.kernels.route import RouteKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering

_MOST_CHOICES = 1024
"""Choices of all tokens: each threadgroup makes all, eight tokens at a time. Launches apart take more time for 64
tokens, and are predicted to take less for more than twice as many."""


@dataclass(frozen=True)
class RouteOrderKernel(MetalKernel):
    """The choice and its order; each threadgroup chooses for all tokens.

    Attributes:
        route: the choice.
        order: the order.
        norm: the norm of the rows of x; None: they are not normalised here.
        most_tokens: the most tokens of a step.
    """

    template = "route_order.metal.jinja"
    route: RouteKernel
    order: ExpertOrderKernel
    norm: NormKernel | None
    most_tokens: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The logits, what the choice reads besides, the dims, and x with its norm."""
        ports: list[Port] = [("logits", DType.F32)]
        others = (("selection_bias", self.route.bias), ("expert_scales", self.route.scales))
        ports += [(name, dtype) for name, dtype in others if dtype]
        ports.append(("dims", DType.U32))
        if self.norm is not None and self.norm.weight is not None:
            ports += [("x", self.norm.activation), ("norm", self.norm.weight)]
        return tuple(ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The choice, its order, and the rows after the norm."""
        normed: tuple[Port, ...] = (("normed", self.norm.activation),) if self.norm else ()
        return (*self.route.outputs, *self.order.outputs, *normed)

    @property
    def threads(self) -> int:
        """As many as order choices."""
        return self.order.threads

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup."""
        return self.order.simdgroups

    @property
    def top_k(self) -> int:
        """Experts of a token."""
        return self.route.top_k

    @property
    def quads(self) -> int:
        """Vectors of 4 elements of a row that a thread normalises."""
        return 0 if self.norm is None else self.norm.width // (4 * self.threads)

    @property
    def kind(self) -> str:
        """The kind of the norm."""
        return "rms"

    @property
    def eps(self) -> float:
        """See `FusedNorm`."""
        return 0.0 if self.norm is None else self.norm.eps

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of all choices, of what orders them, and of the sums of a row."""
        return 4 * self.most_tokens * self.top_k + self.order.threadgroup_bytes + 4 * self.simdgroups


def route_and_order(
    lowering: MetalLowering, op: Op, route: RouteKernel, order: ExpertOrderKernel, norm: NormKernel | None, tokens: int
) -> str | None:
    """Adds the launch of a choice and its order for steps of at least so many tokens.

    Args:
        lowering: of the phase.
        op: the op of the choice.
        route: the choice.
        order: the order.
        norm: the norm of x, if it has one; some are left to a launch of their own.
        tokens: see above.

    Returns:
        The buffer of the rows of x after the norm; None: there is none.
    """
    if norm is not None and (
        norm.kind != "rms" or norm.weight is None or norm.bias or norm.width % (4 * order.threads)
    ):
        norm = None
    most = lowering.limits["tokens"]
    assert most * route.top_k <= _MOST_CHOICES, "few enough for each threadgroup"
    kernel = RouteOrderKernel("route_order", route, order, norm, most)
    places, tiles = f"{op.name}.order{order.tile}", f"{op.name}.tiles{order.tile}"
    lowering.scratch.append(Scratch(places, ("tokens", route.top_k), DType.I32))
    count = order.grid_of_tiles.value({"tokens": most})
    lowering.scratch.append(Scratch(tiles, (count, TILE_FIELDS), DType.I32))
    buffers = {"dims": "dims", "order": places, "tiles": tiles}
    normed = None
    if norm is not None:
        normed = buffers["normed"] = normed_name(lowering, op, order.tile)
        x = lowering.tensor(op.inputs["x"])
        lowering.scratch.append(Scratch(normed, x.shape, x.dtype))
    grid = Extent(times=order.num_experts) if norm is None else Extent(dim="tokens", plus=order.num_experts)
    lowering.emit(op, kernel, (grid,), buffers, when=Condition(dim="tokens", minimum=tokens))
    return normed


def takes_order(lowering: MetalLowering, route: RouteKernel) -> bool:
    """Whether each threadgroup can choose for all tokens of a step."""
    return lowering.phase == "decode" and lowering.limits["tokens"] * route.top_k <= _MOST_CHOICES
