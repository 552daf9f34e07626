"""The last projections of the chosen experts, and their sum."""

from dataclasses import dataclass, replace

from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertCombine
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import (
    SUM_IGNORES,
    ExpertKernel,
    SharedMatrix,
    expert_choice,
    expert_fields,
)
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernel_parts.passes import experts_in_passes
from mlxr.compiler.targets.metal.kernels.expert_stream import (
    STREAM_IGNORES,
    UNIT,
    StreamedExperts,
    fitting,
    stream_choice,
    stream_fields,
    streams,
)
from mlxr.compiler.targets.metal.kernels.expert_tiles import multiply_tiles, sum_choices, tiles_from
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


@dataclass(frozen=True)
class ExpertCombineKernel(ExpertKernel):
    """The last projections of the chosen experts and their sum, a shared expert's, and the residual.

    Attributes:
        shared_gate: type of the gate, [tokens, 1], whose sigmoid multiplies the shared expert's result; None: no gate.
        apart: whether the shared expert's result is an output of its own, of the first threadgroups of each token.
    """

    template = "expert_combine.metal.jinja"
    shared_gate: DType | None = None
    apart: bool = False

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The sum and, apart from it, the shared expert's result."""
        return (*super().outputs, ("shared_out", self.epilogue.out)) if self.apart else super().outputs

    @property
    def together(self) -> bool:
        """Whether the simdgroups of a threadgroup have a token each, and share reads of the shared expert's weight."""
        return self.shared is not None and self.shared.tile > 1 and not self.apart

    @property
    def outs_per_threadgroup(self) -> int:
        """Outputs of a threadgroup, for each of its tokens."""
        return self.outs if self.together else super().outs_per_threadgroup

    @property
    def shared_threadgroups(self) -> int:
        """Threadgroups of the shared expert alone, for each token."""
        return self.shared.threadgroups if self.apart and self.shared else 0

    @property
    def threadgroups(self) -> int:
        """Threadgroups of each token."""
        return self.shared_threadgroups + super().threadgroups

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the sums of simdgroups that share columns."""
        if self.together:
            return 4 * self.simdgroups**2 * self.outs
        twice = self.apart and self.shared is not None and self.shared.split > 1
        return self.simdgroups * self.sums * 4 * (2 if twice else 1) if self.split > 1 else 0

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, the chosen experts with their weights, the shared expert, and the ports of the epilogue."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype), *self.choice_ports]
        if self.shared:
            ports += [("shared_x", self.activation), ("shared", self.shared.layout.dtype)]
        if self.shared_gate:
            ports.append(("shared_gate", self.shared_gate))
        return (*ports, *self.epilogue.ports, *self.dims_port)

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        rows = []
        if self.shared:
            rows.append(f"shared_x   [tokens, {self.shared.in_features}] {self.activation}")
        if self.shared_gate:
            rows.append(f"shared_gate [tokens, 1] {self.shared_gate}")
        if self.epilogue.residual:
            rows.append(f"residual   [tokens, {self.out_features}] {self.epilogue.out}")
        if self.apart:
            rows.append(f"shared_out [tokens, {self.out_features}] {self.epilogue.out}")
        rows.append(f"out        [tokens, {self.out_features}] {self.epilogue.out}")
        return self._head(f"[tokens, {self.top_k} * {self.in_features}]", *rows)


@dataclass(frozen=True)
class CombineStreamKernel(StreamedExperts, ExpertCombineKernel):
    """The same, with MMA on weights that come through threadgroup memory.

    The columns are those of all chosen experts, one after the other.
    """

    template = "combine_stream.metal.jinja"

    @property
    def units(self) -> int:
        """Units of the columns of all chosen experts."""
        return self.top_k * self.in_features // UNIT

    @property
    def blocks(self) -> int:
        """Blocks of a row of one expert."""
        return self.in_features // self.format.block_elements

    @property
    def parts(self) -> int:
        """See `StreamedExperts`: x may have 16 bits, but not x times a weight."""
        return 2 if self.weighs or self.activation is DType.F32 else 1


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
    if (streamed := _streamed(kernel, stream.geometry.one_row)) is not None:
        alone, chosen = streamed, stream.sizes(OneRow, without=STREAM_IGNORES)
    if kernel.shared is None:
        tiled = tiles_from(lowering, op)
        few = None if tiled is None else Condition(dim="tokens", maximum=tiled - 1)
        lowering.emit(op, alone, grid_of(alone), {"out": op.out}, when=few, chosen=chosen)
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


def _streamed(kernel: ExpertCombineKernel, sizes: OneRow) -> CombineStreamKernel | None:
    """The kernel with its weight through threadgroup memory, if it can and the geometry asks for that."""
    whole = kernel.top_k * kernel.in_features % UNIT == 0 and kernel.top_k <= SIMD_WIDTH
    if not whole or kernel.skips or not streams(kernel, sizes):
        return None
    return fitting(CombineStreamKernel(**stream_fields(kernel, sizes)))


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
