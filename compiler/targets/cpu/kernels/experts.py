"""Products of a mixture of experts: each token goes through its chosen experts.

A weight has the matrices of all experts, one below the other. See templates/cpu/experts.h.
"""

from dataclasses import dataclass, replace
from typing import Literal

from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertCombine, ExpertProduct, ExpertProjection
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.finish_rows import FinishRows
from mlxr.compiler.targets.cpu.kernel_parts.kernel import Param
from mlxr.compiler.targets.cpu.kernel_parts.matrix_kernel import (
    TILE_ROWS,
    CpuMatrixKernel,
    matrix_fields,
    weight_buffers,
    weight_label,
)
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


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
    """

    template = "experts.jinja"
    num_experts: int = 1
    top_k: int = 1
    inputs_of_pairs: bool = False
    combine: bool = False
    weighs: bool = False

    @property
    def params(self) -> tuple[Param, ...]:
        """x, norm, norm_bias, a weight per segment, bias, residual, experts, weights, out."""
        params = self._first_params
        if self.epilogue.bias:
            params.append(Param("bias", "vector"))
        if self.epilogue.residual:
            params.append(Param("residual", "input"))
        params.append(Param("experts", "indices"))
        if self.weighs:
            params.append(Param("weights", "input"))
        return (*params, Param("out", "output"))

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
        y = self._formula("weight * x" if self.weighs and not self.combine else "x", "[e]")
        if self.combine:
            weight = "weight * " if self.weighs else ""
            return f"{self.label}: out = sum over a token's experts e of {weight}({y}){self._residual_formula}"
        return f"{self.label}: out = {y} for each of a token's experts e"

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
        rows.append(f"experts  [tokens, {self.top_k}] i32")
        if self.weighs:
            rows.append(f"weights  [tokens, {self.top_k}] f32")
        rows.append(f"out      [tokens, {'' if self.combine else f'{self.top_k}, '}{n}] f32")
        return "".join(f"//   {row}\n" for row in rows)

    @property
    def thread_bytes(self) -> int:
        """The sorted pairs, a row in f32, a token's rows in each form, and the scratch for many rows."""
        pairs = self.max_rows * self.top_k
        lists = round_up(4 * (self.num_experts + 2), 64) + 3 * round_up(4 * pairs, 64)
        own = self._forms * (self.top_k + TILE_ROWS) * self._row_bytes
        return lists + round_up(self.in_features, 32) * 4 + own + self._many_bytes

    @property
    def shared_bytes(self) -> int:
        """The rows of all pairs in each form, with the rows that a tile may read past the last one."""
        return self._forms * (self.max_rows * self.top_k + TILE_ROWS) * self._row_bytes


@lowers(ExpertProjection, ExpertCombine)
def lower_experts(lowering: CpuLowering, op: Op, attrs: ExpertProduct) -> None:
    """Adds the call for an op.

    Raises:
        PlanError: an expert's rows of a quantised weight do not fill whole panels.
    """
    fields = matrix_fields(lowering, op, attrs, attrs.num_experts)
    for part, segment in zip(lowering.value(op, "weight").parts, fields["segments"], strict=True):
        if segment.format.is_quantised and segment.rows % PANEL_ROWS:
            raise PlanError(
                f"{part} has {segment.rows} rows an expert in {segment.format}; target cpu packs {PANEL_ROWS} rows "
                f"together: make them a multiple of that, or the format a float one"
            )
    combine = isinstance(attrs, ExpertCombine)
    kernel = CpuExperts(
        label=f"experts_{weight_label(lowering, op)}",
        compute=lowering.compute,
        num_experts=attrs.num_experts,
        top_k=attrs.top_k,
        inputs_of_pairs=combine or lowering.width(op, "x") != fields["in_features"],
        combine=combine,
        weighs="weights" in op.inputs,
        **fields,
    )
    lowering.add_call(op, kernel, weight_buffers(lowering, op))
