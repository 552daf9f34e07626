"""Contexts of the C kernels of a mixture of experts: each token goes through the experts that were chosen for it.

A weight holds one matrix of all experts' rows, in order. See templates/cpu/experts.h.
"""

from dataclasses import dataclass, replace
from typing import Literal

from mlxr.compiler.targets.cpu.kernels.kernel import Param
from mlxr.compiler.targets.cpu.kernels.matrix import FinishRows
from mlxr.compiler.targets.cpu.kernels.projection import TILE_ROWS, CpuMatrixKernel
from mlxr.compiler.targets.rounding import round_up


@dataclass(frozen=True)
class CpuExperts(CpuMatrixKernel):
    """out = x @ W[expert].T for each chosen expert, [tokens, top_k, out_features] f32; or their weighted sum.

    Attributes:
        segments: tensors of all experts; their `rows` are those of one.
        num_experts: matrices in each tensor.
        top_k: experts that each token goes through.
        inputs_of_pairs: whether x is [tokens, top_k, in_features], one row a choice, else [tokens, in_features].
        combine: whether outputs are summed over a token's choices by `weights`: out is [tokens, out_features].
        max_rows: most tokens at once.
    """

    template = "experts.jinja"
    num_experts: int = 1
    top_k: int = 1
    inputs_of_pairs: bool = False
    combine: bool = False

    @property
    def params(self) -> tuple[Param, ...]:
        """x, norm, norm_bias, a weight per segment, bias, residual, experts, weights, out."""
        params = self._first_params
        if self.epilogue.bias:
            params.append(Param("bias", "vector"))
        if self.epilogue.residual:
            params.append(Param("residual", "input"))
        params.append(Param("experts", "indices"))
        if self.combine:
            params.append(Param("weights", "input"))
        return (*params, Param("out", "output"))

    @property
    def out_features(self) -> int:
        """Outputs of one expert."""
        return self.segments[0].rows

    @property
    def finish(self) -> FinishRows:
        """The function that finishes its rows. A sum starts as the residual, and what is added to is that."""
        choices: Literal["apart", "summed"] = "summed" if self.combine else "apart"
        return FinishRows(replace(self.epilogue, residual=self.combine), choices)

    @property
    def formula(self) -> str:
        """What it computes."""
        y = self._formula("x", "[e]")
        if self.combine:
            return f"{self.label}: out = sum over a token's experts e of weight * ({y}){self._residual_formula}"
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
        if self.combine:
            rows.append(f"weights  [tokens, {self.top_k}] f32")
        rows.append(f"out      [tokens, {'' if self.combine else f'{self.top_k}, '}{n}] f32")
        return "".join(f"//   {row}\n" for row in rows)

    @property
    def thread_bytes(self) -> int:
        """Sorted pairs and a row in f32; then a token's rows in every form, blocks of weights, and sums that wait."""
        pairs = self.max_rows * self.top_k
        lists = round_up(4 * (self.num_experts + 2), 64) + 3 * round_up(4 * pairs, 64)
        own = self._forms * (self.top_k + TILE_ROWS) * self._row_bytes
        return lists + round_up(self.in_features, 32) * 4 + own + self._many_bytes

    @property
    def shared_bytes(self) -> int:
        """All pairs' rows, and those of a tile past the last one, in each form."""
        return self._forms * (self.max_rows * self.top_k + TILE_ROWS) * self._row_bytes
