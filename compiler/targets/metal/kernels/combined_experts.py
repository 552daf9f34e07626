"""The lowering of the last projections of the chosen experts, and their sum."""

from dataclasses import replace

from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertCombine
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import (
    SUM_IGNORES,
    SharedMatrix,
    expert_choice,
    expert_fields,
)
from mlxr.compiler.targets.metal.kernel_parts.passes import experts_in_passes
from mlxr.compiler.targets.metal.kernels.combine_stream import combine_stream
from mlxr.compiler.targets.metal.kernels.expert_combine import ExpertCombineKernel
from mlxr.compiler.targets.metal.kernels.expert_stream import (
    STREAM_IGNORES,
    stream_choice,
)
from mlxr.compiler.targets.metal.kernels.expert_tiles import multiply_tiles, sum_choices, tiles_from
from mlxr.compiler.targets.metal.kernels.route import RouteKernel
from mlxr.compiler.targets.metal.kernels.routed_stream import RoutedStreamKernel
from mlxr.compiler.targets.metal.kernels.shared_expert import (
    ALONE,
    as_projection,
    grid_of,
    in_tiles,
    multiply_several,
    multiply_together,
    takes_several,
    tokens_from,
)
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers

_MOST_OUTPUTS = 8
"""The most outputs of a simdgroup where several tokens share reads: it multiplies a few of them after the other."""


@lowers(ExpertCombine)
def lower_expert_combine(lowering: MetalLowering, op: Op, attrs: ExpertCombine) -> None:
    """Adds the launch of the experts' last projections and their sum."""
    choice = expert_choice(lowering, op, "experts_down")
    fields, split = expert_fields(lowering, op, choice), choice.geometry.one_row.split
    if fields["shared"] is not None:
        fields["shared"] = replace(fields["shared"], split=split)
    gate = lowering.optional_dtype(op, "shared_gate")
    label = "experts_down_shared" if fields["shared"] else "experts_down"
    apart = attrs.shared_apart
    kernel = ExpertCombineKernel(label, norm=None, shared_gate=gate, apart=apart, split=split, **fields)
    alone = kernel
    if not (kernel.shared and apart):  # whose threadgroups are others
        alone = experts_in_passes(kernel, choice.geometry.one_row.threadgroups, kernel.top_k)
    chosen = choice.sizes(OneRow, without=SUM_IGNORES)
    stream = stream_choice(lowering, op, "experts_down")
    route, logits = _choice_before(lowering, op)
    buffers = {"out": op.out} | logits
    if (streamed := combine_stream(kernel, stream.geometry.one_row, route)) is not None:
        alone, chosen = streamed, stream.sizes(OneRow, without=STREAM_IGNORES)
    if kernel.shared is None:
        tiled = tiles_from(lowering, op)
        few = None if tiled is None else Condition(dim="tokens", maximum=tiled - 1)
        lowering.emit(op, alone, grid_of(alone), buffers, when=few, chosen=chosen)
        if tiled is not None:
            sum_choices(lowering, op, multiply_tiles(lowering, op, of_tokens=False, tokens=tiled), tiled, op.out)
        return
    if not takes_several(lowering):
        lowering.emit(op, alone, grid_of(alone), {"out": op.out}, chosen=chosen)
        return
    lowering.emit(op, alone, grid_of(alone), {"out": op.out}, when=ALONE, chosen=chosen)
    inputs = {"x": op.inputs["shared_x"], "weight": op.inputs["shared"]}
    if apart:
        product = as_projection(op, Projection(attrs.dtype), inputs, op.outputs["shared_out"])

        def add_without(least: int) -> None:
            _add_alone(lowering, op, kernel, op.out, least, chosen)

        multiply_several(lowering, op, product, kernel, add_without, {"out": op.out}, chosen)
        return
    inputs |= {"gate": op.inputs["shared_gate"]} if "shared_gate" in op.inputs else {}
    _add_several(lowering, op, kernel, as_projection(op, _last(attrs), inputs, op.out), chosen)


def _choice_before(lowering: MetalLowering, op: Op) -> tuple[RouteKernel | None, dict[str, str]]:
    """The choice of the launch before, with its logits, if all threadgroups of that launch have waited for them."""
    producer = lowering.graph.producer(op.inputs["experts"])
    for launch in lowering.pending:
        if op.inputs["experts"] in launch.outputs and isinstance(launch.body, RoutedStreamKernel) and producer:
            return launch.body.route, {"logits": producer.inputs["logits"]}
    return None, {}


def _last(attrs: ExpertCombine) -> Projection:
    """The shared expert's last product, which is added to the sum."""
    return Projection(attrs.dtype, residual_scale=attrs.residual_scale)


def _add_several(
    lowering: MetalLowering, op: Op, kernel: ExpertCombineKernel, product: Op, chosen: ChosenGeometry
) -> None:
    """Adds the launches of steps of several tokens: of few one, of others one of the experts and one of the shared one.

    Args:
        lowering: of the phase.
        op: the op of both.
        kernel: the kernel for steps of one token.
        product: the shared expert's product.
        chosen: the geometry of the kernels for one token.
    """
    assert kernel.shared is not None, "there is a shared expert"
    out, of_experts = lowering.graph.value(op.out), f"{op.name}.of_experts"
    product = replace(product, inputs=product.inputs | {"residual": of_experts})
    lowering.scratch.append(Scratch(of_experts, out.shape, out.dtype))
    least, tiles = 2, in_tiles(lowering, product, kernel.shared)
    if tiles is not None:
        few, most = _of_tokens(kernel, tiles[0]), tiles[1]
        grid = (Extent(times=few.threadgroups), Extent(dim="tokens", per=few.simdgroups))
        buffers = {"out": op.out, "dims": "dims"}
        lowering.emit(op, few, grid, buffers, when=tokens_from(lowering, least, most), chosen=_sizes_of(few, chosen))
        least = most + 1
    if least > lowering.limits["tokens"]:
        lowering.scratch.pop()
        return
    _add_alone(lowering, op, kernel, of_experts, least, chosen)
    multiply_together(lowering, product, least)


def _add_alone(
    lowering: MetalLowering, op: Op, kernel: ExpertCombineKernel, out: str, least: int, chosen: ChosenGeometry
) -> None:
    """Adds the launches of the experts without a shared one into `out`, for steps of at least so many tokens."""
    alone = replace(kernel, label="experts_down", shared=None, shared_gate=None, apart=False)
    tiled = tiles_from(lowering, op)
    if tiled is None or tiled > least:
        when = tokens_from(lowering, least, None if tiled is None else tiled - 1)
        lowering.emit(op, alone, grid_of(alone), {"out": out}, when=when, chosen=chosen)
    if tiled is not None:
        tokens = max(tiled, least)
        sum_choices(lowering, op, multiply_tiles(lowering, op, of_tokens=False, tokens=tokens), tokens, out)


def _of_tokens(kernel: ExpertCombineKernel, matrix: SharedMatrix) -> ExpertCombineKernel:
    """The kernel whose simdgroups have a token each, and some columns of the shared expert's weight for all of them."""
    outs = min(kernel.outs, _MOST_OUTPUTS)
    assert kernel.out_features % outs == 0, "rows of the residual stream are multiples of 8"
    shared = replace(matrix, outs=min(matrix.outs, outs), split=matrix.tile, simdgroups=matrix.tile)
    of_experts = replace(kernel, outs=outs, split=1, simdgroups=matrix.tile, shared=shared)
    return replace(of_experts, label=f"{kernel.label}_rows")


def _sizes_of(kernel: ExpertCombineKernel, chosen: ChosenGeometry) -> ChosenGeometry:
    """The sizes of a kernel of `_of_tokens`, with the reasons for those that are as chosen."""
    names = OneRow.names("outputs", "simdgroups", "split", "threadgroups")
    own = dict(zip(names, (kernel.outs, kernel.simdgroups, kernel.split, 0), strict=True))
    why = {name: text for name, text in chosen.why.items() if own.get(name, chosen.sizes[name]) == chosen.sizes[name]}
    return ChosenGeometry(site=chosen.site, sizes={**chosen.sizes, **own}, why=why)
