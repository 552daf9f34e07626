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
        gather: whether the input `rows` selects rows of x.
        tile: rows of x per threadgroup; 1: the kernel computes a single row.
    """

    gather: bool
    tile: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, the ports of norm and epilogue, the selected rows, and the dims if there are several rows."""
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
        """The formula, for the head of the kernel."""
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
