"""The base of the kernels of projections."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.formula import formula
from mlxr.compiler.targets.metal.kernel_parts.matrix_kernel import MatrixKernel


@dataclass(frozen=True)
class ProjectionKernel(MatrixKernel):
    """Base of the kernels of projections: one for one row of x, and others for several or for many.

    Attributes:
        gather: whether the input `rows` names the rows of x that count.
        tile: rows of x of a threadgroup; if it is 1, x has one row that counts.
    """

    gather: bool
    tile: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, what norm and epilogue read, the rows that count, and the dims where rows are counted."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype)]
        ports += self.norm.ports if self.norm else ()
        ports += self.epilogue.ports
        if self.gather:
            ports.append(("rows", DType.I32))
        if self.tile > 1:
            ports.append(("dims", DType.U32))
        return tuple(ports)

    @property
    def count(self) -> str:
        """The dim that counts the rows."""
        return "rows" if self.gather else "tokens"

    @property
    def formula(self) -> str:
        """What it computes, for the head of the kernel."""
        x = "x[rows]" if self.gather else "x"
        return f"out = {formula(self.epilogue, f'{self.norm.kind}_norm({x})' if self.norm else x)}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        e = self.epilogue
        rows = self._matrix_table(f"[tokens, {self.in_features}]")
        if e.bias:
            rows.append(f"bias       [{self.layout.rows}] {e.bias}")
        if e.residual:
            rows.append(f"residual   [tokens, {self.out_features}] {e.out}")
        if e.gate:
            rows.append(f"gate       [tokens, 1] {e.gate}")
        if self.gather:
            rows.append("rows       [rows] i32")
        rows.append(f"out        [{self.count}, {self.out_features}] {e.out}")
        return "".join(f"//   {row}\n" for row in rows)
