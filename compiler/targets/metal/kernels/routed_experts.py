"""The lowering of a choice of experts and their first projections."""

from dataclasses import replace

from mlxr.compiler.artifact.launch import Condition
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import RoutedProjection
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import (
    PROJECTION_IGNORES,
    SUM_IGNORES,
    expert_choice,
    expert_fields,
    shared_matrix,
)
from mlxr.compiler.targets.metal.kernel_parts.fused_norm import fused_norm_of
from mlxr.compiler.targets.metal.kernel_parts.passes import experts_in_passes
from mlxr.compiler.targets.metal.kernels.expert_order import order_kernel
from mlxr.compiler.targets.metal.kernels.expert_stream import (
    STREAM_IGNORES,
    stream_choice,
)
from mlxr.compiler.targets.metal.kernels.expert_tiles import first_of_decode, multiply_tiles, tiles_from
from mlxr.compiler.targets.metal.kernels.normalise import norm_of
from mlxr.compiler.targets.metal.kernels.route import RouteKernel, route_kernel
from mlxr.compiler.targets.metal.kernels.route_order import route_and_order, takes_order
from mlxr.compiler.targets.metal.kernels.routed_projection import RoutedProjectionKernel
from mlxr.compiler.targets.metal.kernels.routed_stream import routed_stream
from mlxr.compiler.targets.metal.kernels.shared_expert import (
    ALONE,
    as_projection,
    grid_of,
    multiply_several,
    takes_several,
    tokens_from,
)
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns, row_count


@lowers(RoutedProjection)
def lower_routed_projection(lowering: MetalLowering, op: Op, attrs: RoutedProjection) -> None:
    """Adds the launch of a choice of experts and of their first projections."""
    choice, gate = expert_choice(lowering, op, "experts"), None
    if "gate_weight" in op.inputs:
        plain = Epilogue(out=DType.F32)
        gate = shared_matrix(lowering, op, plain, choice.geometry.one_row, "gate_weight")
    num_experts = num_columns(lowering.value(op, "logits"))
    kernel = RoutedProjectionKernel(
        "routed_experts_shared" if "shared" in op.inputs else "routed_experts",
        norm=fused_norm_of(lowering, op),
        route=replace(
            route_kernel(attrs.route, num_experts, lowering.optional_dtype(op, "selection_bias")),
            scales=lowering.optional_dtype(op, "expert_scales"),
        ),
        shared_norm=lowering.optional_dtype(op, "shared_norm"),
        gate=gate,
        **expert_fields(lowering, op, choice),
    )
    alone = _in_passes(kernel, choice.geometry.one_row)
    chosen = choice.sizes(OneRow, without=SUM_IGNORES if alone.passes else PROJECTION_IGNORES)
    stream = stream_choice(lowering, op, "experts")
    if (streamed := routed_stream(kernel, stream.geometry.one_row)) is not None:
        alone, chosen = streamed, stream.sizes(OneRow, without=STREAM_IGNORES)
    tiled = tiles_from(lowering, op)
    if kernel.shared is None or not takes_several(lowering):
        few = None if tiled is None else Condition(dim="tokens", maximum=tiled - 1)
        lowering.emit(op, alone, grid_of(alone), when=few, chosen=chosen)
        if tiled is not None:
            _multiply_tiles(lowering, op, kernel.route, tiled)
        return
    lowering.emit(op, alone, grid_of(alone), when=ALONE, chosen=chosen)
    without = replace(kernel, label="routed_experts", shared=None, shared_norm=None)

    def add_without(least: int) -> None:
        if tiled is None or tiled > least:
            when = tokens_from(lowering, least, None if tiled is None else tiled - 1)
            lowering.emit(op, without, grid_of(without), when=when, chosen=chosen)
        if tiled is not None:
            _multiply_tiles(lowering, op, kernel.route, max(tiled, least))

    multiply_several(lowering, op, _shared_product(op, attrs), kernel, add_without, {}, chosen)


def _multiply_tiles(lowering: MetalLowering, op: Op, route: RouteKernel, tokens: int) -> None:
    """Adds the launches of steps of at least so many tokens: of the choice, its order, and the products."""
    if takes_order(lowering, route):
        facts, tile = first_of_decode(lowering, op)
        norm = norm_of(lowering, op, facts)
        normed = route_and_order(lowering, op, route, order_kernel(lowering, op, tile), norm, tokens)
        multiply_tiles(lowering, op, of_tokens=True, tokens=tokens, normalised=normed)
        return
    buffers = {port: op.outputs[port] for port, _ in route.outputs}
    ports = {"x": "logits", "bias": "selection_bias", "scales": "expert_scales"}
    buffers |= {port: op.inputs[ports[port]] for port, _ in route.inputs}
    logits = lowering.value(op, "logits")
    lowering.emit(op, route, (row_count(logits),), buffers, when=Condition(dim="tokens", minimum=tokens))
    multiply_tiles(lowering, op, of_tokens=True, tokens=tokens)


def _in_passes(kernel: RoutedProjectionKernel, sizes: OneRow) -> RoutedProjectionKernel:
    """The kernel with few threadgroups, if the geometry asks for that and it can: only those share columns."""
    shared = None if kernel.shared is None else replace(kernel.shared, split=sizes.split)
    few = experts_in_passes(replace(kernel, split=sizes.split, shared=shared), sizes.threadgroups)
    return few if few.passes else kernel


def _shared_product(op: Op, attrs: RoutedProjection) -> Op:
    """The first product of the shared expert."""
    finish, norm = attrs.shared_finish, attrs.norm
    first = Projection(attrs.dtype, activation=finish.activation, gated=finish.gated, limit=finish.limit)
    if norm is not None:
        first = replace(first, norm_kind=norm.kind, eps=norm.eps)
    inputs = {port: op.inputs[port] for port in ("x", "norm", "norm_bias") if port in op.inputs}
    inputs |= {"norm": op.inputs["shared_norm"]} if "shared_norm" in op.inputs else {}
    return as_projection(op, first, inputs | {"weight": op.inputs["shared"]}, op.outputs["shared_out"])
