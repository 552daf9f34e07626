"""Products of a mixture of experts: each token goes through its chosen experts.

A weight has the matrices of all experts, one below the other. See templates/cpu/experts.h.
"""

from dataclasses import dataclass, replace
from typing import Literal

from mlxr.compiler.artifact.c_library import LATER
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertCombine, ExpertProduct, ExpertProjection, RoutedProjection
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.finish_rows import FinishRows
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHelper, Param
from mlxr.compiler.targets.cpu.kernel_parts.matrix_kernel import (
    TILE_ROWS,
    CpuMatrixKernel,
    MatrixFields,
    OutputSegment,
    matrix_fields,
    weight_buffers,
    weight_label,
)
from mlxr.compiler.targets.cpu.kernels.projection import CpuProjection
from mlxr.compiler.targets.cpu.kernels.route import CpuRoute, route_kernel
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers
from mlxr.compiler.targets.cpu.tensors import expert_stride
from mlxr.compiler.targets.epilogue import Epilogue


@dataclass(frozen=True)
class CpuExperts(CpuMatrixKernel):
    """out = x @ W[expert].T for each chosen expert, [tokens, top_k, out_features] f32, or the weighted sum of these.

    Attributes:
        segments: see `CpuMatrixKernel`; each tensor has the matrices of all experts, and `rows` counts one expert's.
        num_experts: matrices in each tensor; a choice of -1 is none of them, and is skipped.
        top_k: experts that each token goes through.
        inputs_of_pairs: whether x has a row for each choice, [tokens, top_k, in_features], or for each token,
            [tokens, in_features].
        combine: whether the results of a token's experts are summed, so that out is [tokens, out_features].
        weighs: whether experts have weights: of what is summed, else of what they read.
        max_rows: the most tokens of a batch.
        route: the choice of experts, if this kernel makes it.
        shared, gate: what every token goes through: a shared expert's product, and the one that makes its gate.
        shared_norm: whether the shared expert has weights of its own for the norm of x.
        shared_apart: see `ExpertCombine`.
        later: the tensor that the results are multiplied with next, by the same choice; None: there is none.
    """

    template = "experts.jinja"
    num_experts: int = 1
    top_k: int = 1
    inputs_of_pairs: bool = False
    combine: bool = False
    weighs: bool = False
    route: CpuRoute | None = None
    shared: CpuProjection | None = None
    gate: CpuProjection | None = None
    shared_norm: bool = False
    shared_apart: bool = False
    later: OutputSegment | None = None

    @property
    def params(self) -> tuple[Param, ...]:
        """x, weights of all kinds, bias, residual, logits or experts, what the shared expert needs; and the results."""
        params = self._first_params
        if self.epilogue.bias:
            params.append(Param("bias", "vector"))
        if self.epilogue.residual:
            params.append(Param("residual", "input"))
        results = [Param("out", "output")]
        if self.route:
            params.append(Param("logits", "input"))
            params += [Param("selection_bias", "vector")] if self.route.bias else []
            params += [Param("expert_scales", "vector")] if self.route.scales else []
            results.append(Param("experts", "output_indices"))
            results += [] if self.weighs else [Param("weights", "output")]
        else:
            params.append(Param("experts", "indices"))
        if self.weighs and not self.route:
            params.append(Param("weights", "input"))
        if self.shared:
            params += [Param(f"s{index}", "matrix") for index in range(len(self.shared.segments))]
            params += [Param("shared_norm", "vector")] if self.shared_norm else []
            results += [Param("shared_out", "output")] if self.shared_apart else []
            if self.combine:
                params.append(Param("shared_x", "input"))
                params += [Param("shared_gate", "input")] if self.shared.epilogue.gate else []
            else:
                results.append(Param("shared_out", "output"))
        if self.gate:
            params.append(Param("g0", "matrix"))
            results.append(Param("shared_gate", "output"))
        if self.later:
            params.append(Param(LATER, "matrix"))
        return (*params, *results)

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """Those of its own products, and of a shared expert's."""
        return tuple(dict.fromkeys((*super().helpers, *(helper for p in self._always for helper in p.helpers))))

    @property
    def _always(self) -> tuple[CpuProjection, ...]:
        return tuple(part for part in (self.shared, self.gate) if part is not None)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one expert's matrix to the next one's in each tensor."""
        return tuple(_stride(segment, self.in_features) for segment in self.segments)

    @property
    def later_stride(self) -> int:
        """The same in the next tensor, whose columns are this product's outputs."""
        return _stride(self.later, self.out_features) if self.later else 0

    @property
    def out_features(self) -> int:
        """Outputs of one expert."""
        return self.segments[0].rows

    @property
    def finish(self) -> FinishRows:
        """The function that turns sums into outputs. With `combine` it adds to `out`, which starts as residual or 0."""
        choices: Literal["apart", "weighed", "summed", "added"]
        choices = ("summed" if self.weighs else "added") if self.combine else "weighed" if self.weighs else "apart"
        return FinishRows(replace(self.epilogue, residual=self.combine), choices)

    @property
    def formula(self) -> str:
        """The formula, for the head of the function."""
        y, also = self._formula("weight * x" if self.weighs and not self.combine else "x", "[e]"), ""
        if self.combine:
            weight = "weight * " if self.weighs else ""
            if self.shared_apart:
                also = "; shared_out = shared_x @ s0.T"
            elif self.shared:
                also = f" + {'sigmoid(shared_gate) * ' if self.shared.epilogue.gate else ''}shared_x @ s0.T"
            return f"{self.label}: out = sum over a token's experts e of {weight}({y}){also}{self._residual_formula}"
        if self.route:
            also = f", chosen by {self.route.formula}"
        return f"{self.label}: out = {y} for each of a token's experts e{also}"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        k, n = self.in_features, self.out_features
        rows = [f"x        [tokens, {f'{self.top_k}, ' if self.inputs_of_pairs else ''}{k}] f32", *self._norm_table]
        rows += [f"{f'w{i}':8} [{self.num_experts}, {s.rows}, {k}] {s.format}" for i, s in enumerate(self.segments)]
        if self.epilogue.bias:
            rows.append(f"bias     [{len(self.segments)}, {self.num_experts}, {n}] f32")
        if self.epilogue.residual:
            rows.append(f"residual [tokens, {n}] f32")
        if self.route:
            rows.append(f"logits   [tokens, {self.route.num_experts}] f32")
            rows += [f"expert_scales [{self.route.num_experts}] f32"] if self.route.scales else []
        rows.append(f"experts  [tokens, {self.top_k}] i32")
        if self.weighs != (self.route is not None):
            rows.append(f"weights  [tokens, {self.top_k}] f32")
        for name, part in (("s", self.shared), ("g", self.gate)):
            sizes = enumerate(part.segments if part else ())
            rows += [f"{f'{name}{i}':8} [{s.rows}, {part.in_features}] {s.format}" for i, s in sizes if part]
        if self.shared:
            width = self.shared.in_features if self.combine else self.shared.out_features
            rows.append(f"shared_{'x' if self.combine else 'out'} [tokens, {width}] f32")
        rows += [f"shared_norm [{k}] f32"] if self.shared_norm else []
        rows += [f"shared_out [tokens, {n}] f32"] if self.shared_apart else []
        if self.gate or (self.shared and self.shared.epilogue.gate):
            rows.append("shared_gate [tokens, 1] f32")
        if self.later:
            rows.append(f"later    [{self.num_experts}, {self.later.rows}, {self.out_features}] {self.later.format}")
        rows.append(f"out      [tokens, {'' if self.combine else f'{self.top_k}, '}{n}] f32")
        return "".join(f"//   {row}\n" for row in rows)

    @property
    def thread_bytes(self) -> int:
        """The sorted pairs, a row in f32, a token's rows in each form, and the scratch for many rows."""
        pairs = self.max_rows * self.top_k
        lists = round_up(4 * (self.num_experts + 2), 64) + 3 * round_up(4 * pairs, 64)
        own = self._forms * (self.top_k + TILE_ROWS) * self._row_bytes
        also = [part._forms * (1 + TILE_ROWS) * part._row_bytes for part in self._always]
        widest = max(part.in_features for part in (self, *self._always))
        many = max(part._many_bytes for part in (self, *self._always))
        return lists + round_up(widest, 32) * 4 + own + sum(also) + many

    @property
    def shared_bytes(self) -> int:
        """The rows of all pairs in each form, with the rows that a tile may read past the last one."""
        also = [part._forms * (self.max_rows + TILE_ROWS) * part._row_bytes for part in self._always]
        return self._forms * (self.max_rows * self.top_k + TILE_ROWS) * self._row_bytes + sum(also)


@lowers(ExpertProjection, RoutedProjection, ExpertCombine)
def lower_experts(lowering: CpuLowering, op: Op, attrs: ExpertProduct) -> None:
    """Adds the call for an op.

    Raises:
        PlanError: an expert's rows of a quantised weight do not fill whole panels, or there are too many experts.
    """
    fields = matrix_fields(lowering, op, attrs, attrs.num_experts)
    for part, segment in zip(lowering.value(op, "weight").parts, fields["segments"], strict=True):
        if segment.format.is_quantised and segment.rows % PANEL_ROWS:
            raise PlanError(
                f"{part} has {segment.rows} rows an expert in {segment.format}; target cpu packs {PANEL_ROWS} rows "
                f"together: make them a multiple of that, or the format a float one"
            )
    combine, route = isinstance(attrs, ExpertCombine), None
    if isinstance(attrs, RoutedProjection):
        has_bias = "selection_bias" in op.inputs
        route = route_kernel(op, attrs.route, lowering.width(op, "logits"), has_bias=has_bias)
        route = replace(route, scales="expert_scales" in op.inputs)
        fields["max_rows"] = lowering.phase_tokens
    if "shared" in op.inputs:
        fields["max_rows"] = lowering.phase_tokens
    gate = DType.F32 if "shared_gate" in op.inputs else None
    apart = isinstance(attrs, ExpertCombine) and attrs.shared_apart
    of_shared = replace(fields["epilogue"], bias=None, residual=combine and not apart, gate=gate)
    if isinstance(attrs, RoutedProjection):
        of_shared = replace(of_shared, limit=attrs.shared_limit)
    label = f"experts_{weight_label(lowering, op)}"
    if route is not None:
        label = f"routed_{label}"
    elif "shared" in op.inputs:
        label = f"{label}_shared"
    kernel = CpuExperts(
        label=label,
        compute=lowering.compute,
        num_experts=attrs.num_experts,
        top_k=attrs.top_k,
        inputs_of_pairs=combine or lowering.width(op, "x") != fields["in_features"],
        combine=combine,
        weighs="weights" in op.inputs or (isinstance(attrs, RoutedProjection) and attrs.weighs),
        route=route,
        shared=_of_every_token(lowering, op, fields, "shared", of_shared),
        gate=_of_every_token(lowering, op, fields, "gate_weight", Epilogue(out=DType.F32)),
        shared_norm="shared_norm" in op.inputs,
        shared_apart=apart,
        **fields,
    )
    buffers = weight_buffers(lowering, op)
    if (next_weight := _next_weight(lowering, op)) is not None:
        rows = lowering.shapes[next_weight][0] // attrs.num_experts
        kernel = replace(kernel, later=OutputSegment(lowering.spec.weights.of_tensor(next_weight), rows))
        buffers[LATER] = next_weight
    for port, name in (("shared", "s"), ("gate_weight", "g")):
        parts = lowering.value(op, port).parts if port in op.inputs else ()
        buffers |= {f"{name}{index}": part for index, part in enumerate(parts)}
    lowering.add_call(op, kernel, buffers)


def _stride(segment: OutputSegment, columns: int) -> int:
    return expert_stride(segment.rows, segment.format.row_bytes(columns), packed=segment.format.is_quantised)


def _next_weight(lowering: CpuLowering, op: Op) -> str | None:
    """The tensor that the results of chosen experts are multiplied with, if they are the gate and up of these."""
    following = (
        other.inputs["weight"]
        for other in lowering.graph.ops
        if isinstance(other.attrs, ExpertCombine) and other.inputs["x"] == op.outputs["out"]
    )
    parts = [part for name in following for part in lowering.graph.value(name).parts]
    return parts[0] if len(parts) == 1 else None


def _of_every_token(
    lowering: CpuLowering, op: Op, fields: MatrixFields, port: str, epilogue: Epilogue
) -> CpuProjection | None:
    """The product of an op's weight that every token is multiplied with; None: the op has none at that port."""
    if port not in op.inputs:
        return None
    of = lowering.spec.weights
    segments = [OutputSegment(of.of_tensor(part), lowering.shapes[part][0]) for part in lowering.value(op, port).parts]
    own = fields.copy()
    own["in_features"], own["segments"], own["epilogue"] = lowering.width(op, port), tuple(segments), epilogue
    return CpuProjection(label=port, compute=lowering.compute, **own)
