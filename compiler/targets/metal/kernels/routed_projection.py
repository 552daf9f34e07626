"""The choice of experts and the first projections of the chosen ones, and those of a shared expert."""

from dataclasses import KW_ONLY, dataclass, replace

from mlxr.compiler.artifact.launch import Condition
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import RoutedProjection
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import (
    PROJECTION_IGNORES,
    SUM_IGNORES,
    ExpertKernel,
    SharedMatrix,
    expert_choice,
    expert_fields,
    shared_matrix,
)
from mlxr.compiler.targets.metal.kernel_parts.fused_norm import fused_norm_of
from mlxr.compiler.targets.metal.kernel_parts.passes import bytes_of_sums, experts_in_passes, passes_of
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import formula
from mlxr.compiler.targets.metal.kernels.expert_stream import (
    STREAM_IGNORES,
    UNIT,
    StreamedExperts,
    fitting,
    stream_choice,
    stream_fields,
    streams,
)
from mlxr.compiler.targets.metal.kernels.expert_tiles import multiply_tiles, tiles_from
from mlxr.compiler.targets.metal.kernels.route import RouteKernel, route_kernel
from mlxr.compiler.targets.metal.kernels.shared_expert import (
    ALONE,
    as_projection,
    grid_of,
    multiply_several,
    takes_several,
    tokens_from,
)
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns, row_count


@dataclass(frozen=True)
class RoutedProjectionKernel(ExpertKernel):
    """The choice of experts, and their projections, each into its own columns of the result.

    Attributes:
        route: the choice.
        gate: the row that makes the shared expert's gate; None: it has none.
        shared_norm: type of the shared expert's own weight for the norm of x; None: it has the experts'.
    """

    template = "routed_projection.metal.jinja"
    _: KW_ONLY
    route: RouteKernel
    gate: SharedMatrix | None = None
    shared_norm: DType | None = None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, the logits and their bias, the shared expert's weights, the ports of norm and epilogue."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype), ("logits", DType.F32)]
        ports += [("selection_bias", self.route.bias)] if self.route.bias else []
        ports += [("expert_scales", self.route.scales)] if self.route.scales else []
        ports += [("shared", self.shared.layout.dtype)] if self.shared else []
        ports += [("shared_norm", self.shared_norm)] if self.shared_norm else []
        ports += [("gate_weight", self.gate.layout.dtype)] if self.gate else []
        return (*ports, *(self.norm.ports if self.norm else ()), *self.epilogue.ports, *self.dims_port)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the sums of a threadgroup's tiles."""
        return bytes_of_sums(self) if self.passes else 0

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The experts' results, the choice, and the shared expert's results."""
        ports: list[Port] = [("out", self.epilogue.out), *self.route.outputs[: 1 if self.weighs else 2]]
        ports += [("shared_out", self.epilogue.out)] if self.shared else []
        return (*ports, *([("shared_gate", DType.F32)] if self.gate else []))

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """See `MatrixKernel`."""
        return tuple(dict.fromkeys((*super().formats, *(self.gate.formats if self.gate else ()))))

    @property
    def expert_threadgroups(self) -> int:
        """Threadgroups of each chosen expert of a token."""
        return super().threadgroups

    @property
    def shared_threadgroups(self) -> int:
        """Threadgroups of the shared expert, for each token, and of its gate."""
        return sum(part.threadgroups for part in (self.shared, self.gate) if part is not None)

    @property
    def gate_threadgroup(self) -> int:
        """The threadgroup that makes the gate."""
        return self.shared.threadgroups if self.shared else 0

    @property
    def threadgroups(self) -> int:
        """Threadgroups of each token."""
        return self.shared_threadgroups + self.top_k * self.expert_threadgroups

    @property
    def formula(self) -> str:
        """The formula, for the head of the kernel."""
        x = f"{self.norm.kind}_norm(x)" if self.norm else "x"
        return f"out = {formula(self.epilogue, f'weight of the choice * {x}' if self.weighs else x)}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        experts, out = self.route.num_experts, self.epilogue.out
        rows = [f"logits     [tokens, {experts}] f32: the router's"]
        if self.route.bias:
            rows.append(f"selection_bias [{experts}] {self.route.bias}: added for the choice only")
        if self.route.scales:
            rows.append(f"expert_scales [{experts}] {self.route.scales}: multiply the weights of their experts")
        if self.shared_norm:
            rows.append(f"shared_norm [{self.in_features}] {self.shared_norm}: norm, for the shared expert")
        if self.gate:
            rows += self._rows_of("gate_weight", self.gate.layout)
        if not self.weighs:
            rows.append(f"weights    [tokens, {self.top_k}] f32")
        rows.append(f"out        [tokens, {self.top_k} * {self.out_features}] {out}")
        if self.shared:
            rows.append(f"shared_out [tokens, {self.shared.out_features}] {out}")
        if self.gate:
            rows.append("shared_gate [tokens, 1] f32")
        return self._head(f"[tokens, {self.in_features}]", *rows)


@dataclass(frozen=True)
class RoutedStreamKernel(StreamedExperts, RoutedProjectionKernel):
    """The same, with MMA on weights that come through threadgroup memory."""

    template = "routed_stream.metal.jinja"


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
    if (streamed := _streamed(kernel, stream.geometry.one_row)) is not None:
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


def _streamed(kernel: RoutedProjectionKernel, sizes: OneRow) -> RoutedStreamKernel | None:
    """The kernel with its weight through threadgroup memory, if it can and the geometry asks for that."""
    plain = kernel.norm is None or (kernel.norm.kind == "rms" and not kernel.norm.bias)
    if not plain or kernel.gate or kernel.in_features % UNIT or not streams(kernel, sizes):
        return None
    made = RoutedStreamKernel(**stream_fields(kernel, sizes))
    if sizes.threadgroups:
        made = replace(made, passes=passes_of(made.top_k * made.expert_threadgroups, sizes.threadgroups))
    return fitting(made)


def _shared_product(op: Op, attrs: RoutedProjection) -> Op:
    """The first product of the shared expert."""
    finish, norm = attrs.shared_finish, attrs.norm
    first = Projection(attrs.dtype, activation=finish.activation, gated=finish.gated, limit=finish.limit)
    if norm is not None:
        first = replace(first, norm_kind=norm.kind, eps=norm.eps)
    inputs = {port: op.inputs[port] for port in ("x", "norm", "norm_bias") if port in op.inputs}
    inputs |= {"norm": op.inputs["shared_norm"]} if "shared_norm" in op.inputs else {}
    return as_projection(op, first, inputs | {"weight": op.inputs["shared"]}, op.outputs["shared_out"])
