"""Contexts of the experts' kernels: they read the rows of the experts that a token's router chose, and no others."""

from dataclasses import dataclass
from typing import ClassVar

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernels.formula import formula
from mlxr.compiler.targets.metal.kernels.projection_kernels import MatrixKernel


@dataclass(frozen=True)
class ExpertKernel(MatrixKernel):
    """Base of the experts' kernels: `out_features` are one expert's, the weight's rows all experts', in order."""

    num_experts: int
    top_k: int

    def __post_init__(self) -> None:
        """Checks that all experts' rows lie the same way."""
        assert self.matrix_rows == self.num_experts * self.out_features, f"{self.label}: rows of the weight"
        borders = {s.first_row for s in self.layout.segments}
        assert borders <= {half * self.matrix_rows for half in range(self.epilogue.halves)}, f"{self.label}: segments"

    def _head(self, x: str, *rows: str) -> str:
        every = [*self._matrix_table(x), f"experts    [tokens, {self.top_k}] i32", *rows]
        if self.epilogue.bias:
            every.append(f"bias       [{self.layout.rows}] {self.epilogue.bias}")
        return "".join(f"//   {row}\n" for row in every)


@dataclass(frozen=True)
class ExpertProjectionKernel(ExpertKernel):
    """The projections of the chosen experts, each into columns of its own."""

    template: ClassVar[str] = "expert_projection.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What the op binds."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype), ("experts", DType.I32)]
        return (*ports, *(self.norm.ports if self.norm else ()), *self.epilogue.ports)

    @property
    def formula(self) -> str:
        """What it computes, for the head of the kernel."""
        return f"out = {formula(self.epilogue, f'{self.norm.kind}_norm(x)' if self.norm else 'x')}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        out = f"out        [tokens, {self.top_k} * {self.out_features}] {self.epilogue.out}"
        return self._head(f"[tokens, {self.in_features}]", out)


@dataclass(frozen=True)
class ExpertCombineKernel(ExpertKernel):
    """The last projections of the chosen experts, their weighted sum, and the residual stream."""

    template: ClassVar[str] = "expert_combine.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What the op binds."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype), ("experts", DType.I32)]
        return (*ports, ("weights", DType.F32), *self.epilogue.ports)

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        rows = [f"weights    [tokens, {self.top_k}] f32"]
        if self.epilogue.residual:
            rows.append(f"residual   [tokens, {self.out_features}] {self.epilogue.out}")
        rows.append(f"out        [tokens, {self.out_features}] {self.epilogue.out}")
        return self._head(f"[tokens, {self.top_k} * {self.in_features}]", *rows)
