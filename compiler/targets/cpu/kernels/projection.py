"""Products of rows with weight matrices, and the ops that passes fused with them."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import Route
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.product import AddedBlock, Product
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.adapted import is_adapted
from mlxr.compiler.targets.cpu.kernel_parts.finish_rows import FinishRows
from mlxr.compiler.targets.cpu.kernel_parts.kernel import Param
from mlxr.compiler.targets.cpu.kernel_parts.matrix import Matrix
from mlxr.compiler.targets.cpu.kernel_parts.matrix_kernel import (
    TILE_ROWS,
    CpuMatrixKernel,
    matrix_fields,
    weight_buffers,
    weight_label,
)
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class OutputColumns:
    """Adjacent columns of a result: the product with `weight` or, if gated, activation(gate) * up.

    Attributes:
        matrix, weight: the multiplication of the weight, and its parameter; if gated, those of the gate.
        up_matrix, up: those of the up projection; None if not gated.
        rows: rows of the weight, which are columns of the result.
    """

    matrix: Matrix
    weight: str
    up_matrix: Matrix | None
    up: str | None
    rows: int


@dataclass(frozen=True)
class CpuProjection(CpuMatrixKernel):
    """out = x @ W.T, [rows, out_features] f32, with a norm before it and an epilogue.

    Attributes:
        gather: whether its rows are the batch's `logit_rows` instead of all tokens.
        of_rows: whether its rows are those whose logits are wanted, chosen here or before.
        logits: whether it writes into the caller's memory, whose address is in the batch.
        added: what a block adds to x first; None for nothing.
        adds_two: whether that is the sum of two results.
        scales_sum: whether a number multiplies the sum.
        gives_sum: whether it also writes the sum.
        columns: columns of x, of which the first `in_features` are multiplied; 0: it has no others.
    """

    template = "projection.jinja"
    gather: bool = False
    of_rows: bool = False
    logits: bool = False
    added: AddedBlock | None = None
    adds_two: bool = False
    scales_sum: bool = False
    gives_sum: bool = False
    columns: int = 0

    @property
    def params(self) -> tuple[Param, ...]:
        """x, norm, norm_bias, a weight per segment, bias, residual, gate, alphas, times, what is added, out, stream."""
        params = self._first_params
        if self.epilogue.bias:
            params.append(Param("bias", "vector"))
        if self.epilogue.residual:
            params.append(Param("residual", "input"))
        if self.epilogue.gate:
            params.append(Param("gate", "input"))
        if self.epilogue.alpha_p:
            params += [Param("alpha_p", "vector"), Param("alpha_n", "vector")]
        if self.epilogue.times:
            params.append(Param("times", "input"))
        stream = (Param("stream", "output"),) if self.gives_sum else ()
        return (*params, *self._added_params, Param("out", "output"), *stream)

    @property
    def _added_params(self) -> tuple[Param, ...]:
        if self.added is None:
            return ()
        params = [Param("added", "input"), Param("added_norm", "vector")]
        if self.adds_two:
            params += [Param("own_norm", "vector"), Param("second", "input"), Param("second_norm", "vector")]
        return (*params, Param("added_scale", "vector")) if self.scales_sum else tuple(params)

    @property
    def x_width(self) -> int:
        """Columns of x."""
        return self.columns or self.in_features

    @property
    def out_features(self) -> int:
        """Columns of the result."""
        rows = sum(segment.rows for segment in self.segments)
        return rows // 2 if self.epilogue.gated else rows

    @property
    def products(self) -> tuple[OutputColumns, ...]:
        """All columns of the result, in order."""
        tensors = [(m, f"w{i}", s.rows) for i, (m, s) in enumerate(zip(self.matrices, self.segments, strict=True))]
        if self.epilogue.gated:
            (gate, w0, rows), (up, w1, up_rows) = tensors
            assert rows == up_rows, "gate and up have equal rows"
            return (OutputColumns(gate, w0, up, w1, rows),)
        return tuple(OutputColumns(matrix, weight, None, None, rows) for matrix, weight, rows in tensors)

    @property
    def finish(self) -> FinishRows:
        """The function that finishes its rows."""
        return FinishRows(replace(self.epilogue, times_first=None, times_width=0))  # places that the call gives

    @property
    def count(self) -> str:
        """The field of the batch that has the number of its rows."""
        return "rows" if self.gather or self.of_rows else "tokens"

    @property
    def formula(self) -> str:
        """The formula, for the head of the function."""
        x = "stream" if self.added else "x"
        y = self._formula(f"{x}[logit_rows]" if self.gather else x)
        if self.epilogue.out_scale != 1:
            y = f"({y}) * {self.epilogue.out_scale}"
        if self.epilogue.out_cap:
            y = f"{self.epilogue.out_cap} * tanh(({y}) / {self.epilogue.out_cap})"
        if self.epilogue.out_limit:
            y = f"clamp({y}, {self.epilogue.out_limit})"
        if self.epilogue.times:
            y = f"times[:, {self.epilogue.times_first}:] * ({y})"
        if self.epilogue.gate:
            y = f"sigmoid(gate) * ({y})"
        return f"{self._sum_formula}{self.label}: out = {y}{self._residual_formula}"

    @property
    def _sum_formula(self) -> str:
        """The formula of the sum of x and what a block adds to it, before the product's."""
        if self.added is None:
            return ""
        block = "rms_norm(added) + rms_norm(second)" if self.adds_two else "added"
        factor = "" if self.added.factor == 1 else f"{self.added.factor} * "
        total = f"x + {factor}rms_norm({block})"
        return f"stream = ({total}) * added_scale; " if self.scales_sum else f"stream = {total}; "

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        n = self.out_features
        rows = [f"x        [{'tokens' if self.gather else self.count}, {self.x_width}] f32", *self._norm_table]
        rows += [f"{f'w{i}':8} [{s.rows}, {self.in_features}] {s.format}" for i, s in enumerate(self.segments)]
        if self.epilogue.bias:
            rows.append(f"bias     [{sum(s.rows for s in self.segments)}] f32")
        if self.epilogue.residual:
            rows.append(f"residual [{self.count}, {n}] f32")
        if self.epilogue.gate:
            rows.append("gate     [tokens, 1] f32")
        if self.epilogue.alpha_p:
            rows.append("alpha_p, alpha_n  [1] f32: of the activation")
        if self.epilogue.times:
            rows.append(f"times    [tokens, {self.epilogue.times_width}] f32")
        for param in self._added_params:
            shape = {"input": f"[tokens, {self.in_features}]", "vector": f"[{self.in_features}]"}[param.kind]
            rows.append(f"{param.name:8} {'[1]' if param.name == 'added_scale' else shape} f32")
        rows.append(f"out      [{self.count}, {n}] f32")
        if self.gives_sum:
            rows.append(f"stream   [tokens, {self.in_features}] f32")
        return "".join(f"//   {row}\n" for row in rows)

    @property
    def thread_bytes(self) -> int:
        """A row in f32, a row in each of three forms, and the scratch for many rows."""
        return round_up(self.in_features, 32) * 4 + 3 * self._row_bytes + self._many_bytes

    @property
    def shared_bytes(self) -> int:
        """All rows in each form that few rows may have, with the rows that a tile may read past the last one."""
        forms = len({matrix.form for matrix in self.matrices})
        return forms * (self.max_rows + TILE_ROWS) * self._row_bytes


@lowers(Linear, Projection)
def lower_projection(lowering: CpuLowering, op: Op, _: Product) -> None:
    """Adds the call for an op; one to whose sums adapters add has its call with that."""
    if not is_adapted(lowering.graph, op):
        lowering.add_call(op, projection_kernel(lowering, op), weight_buffers(lowering, op))


def projection_kernel(lowering: CpuLowering, op: Op) -> CpuProjection:
    """The kernel of an op."""
    attrs, logits = op.attrs_as(Product), op.out in lowering.graph.outputs
    # A router's logits are exact: between two nearly equal experts, rounding would decide.
    readers = lowering.graph.consumers(op.out)
    routes = any(isinstance(r.attrs, Route) or r.inputs.get("logits") == op.out for r in readers)
    return CpuProjection(
        label="logits" if logits else weight_label(lowering, op),
        compute="exact" if routes else lowering.compute,
        gather="rows" in op.inputs,
        of_rows="rows" in op.inputs or lowering.graph.value(op.inputs["x"]).shape[0] == "rows",
        logits=logits,
        added=attrs.added,
        adds_two="second" in op.inputs,
        scales_sum="added_scale" in op.inputs,
        gives_sum="stream" in op.outputs,
        columns=lowering.width(op, "x") if isinstance(attrs, Projection) and attrs.columns else 0,
        **matrix_fields(lowering, op, attrs),
    )
