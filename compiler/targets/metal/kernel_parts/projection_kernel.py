"""The base of the kernels of projections."""

from dataclasses import KW_ONLY, dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.head_rows import HeadRows
from mlxr.compiler.targets.metal.kernel_parts.matrix_kernel import MatrixKernel


@dataclass(frozen=True)
class ExpertRows:
    """The rows of x by expert: a row for each choice of a token, those of an expert one after the other.

    Attributes:
        num_experts: experts of the weight, which has the rows of all, one expert after the other.
        top_k: experts of a token.
        of_tokens: whether x has a row for each token, not for each choice.
        weighs: whether a choice's weight multiplies: x if that has a row for each token, else the result.
    """

    num_experts: int
    top_k: int
    of_tokens: bool
    weighs: bool


@dataclass(frozen=True)
class ProjectionKernel(MatrixKernel):
    """Base of the kernels of projections: one for one row of x, and others for several or for many.

    Attributes:
        gather: whether the input `rows` selects rows of x.
        of_rows: whether its rows are those whose logits are wanted, chosen here or before.
        tile: rows of x per threadgroup; 1: the kernel computes a single row.
        x_columns: columns of x, of which the first `in_features` are multiplied; 0: it has no others.
        experts: the order of the rows, if each is multiplied by an expert of its own; None: by the whole weight.
        heads: the heads, if each is multiplied by a matrix of its own; None: by the whole weight.
        leads: whether the next launch is let in when this one begins. What that one reads before its wait may then
            be made by no launch of the step but those three or more before it.
    """

    gather: bool
    tile: int
    x_columns: int = 0
    _: KW_ONLY
    of_rows: bool = False
    experts: ExpertRows | None = None
    heads: HeadRows | None = None
    leads: bool = False

    @property
    def x_width(self) -> int:
        """Columns of x."""
        return self.x_columns or self.in_features

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, the ports of norm and epilogue, the selected rows, and the dims if there are several rows."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype)]
        ports += self.norm.ports if self.norm else ()
        ports += self.epilogue.ports
        if self.epilogue.times:
            ports.append(("layer", DType.U32))
        if self.gather:
            ports.append(("rows", DType.I32))
        if self.experts:
            ports += [("order", DType.I32), ("tiles", DType.I32)]
            ports += [("weights", DType.F32)] if self.experts.weighs else []
        elif self.tile > 1:
            ports.append(("dims", DType.U32))
        if self.heads and self.heads.frequencies:
            ports.append(("positions", DType.I32))
        return (*ports, *self.added.ports) if self.added else tuple(ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The result, and the sum of x and what a block adds, if others read it."""
        gives = self.added is not None and self.added.gives
        return (*super().outputs, ("stream", self.activation)) if gives else super().outputs

    @property
    def x_loads(self) -> str:
        """See `MatrixKernel`."""
        return "row" if self.added else super().x_loads

    @property
    def row_quads(self) -> int:
        """Vectors of 4 elements of a row of x that a thread makes."""
        return -(-self.in_features // (4 * self.threads))

    @property
    def row_exact(self) -> bool:
        """Whether all threads make equally many."""
        return self.in_features % (4 * self.threads) == 0

    @property
    def row_bytes(self) -> int:
        """Bytes of the rows of x in threadgroup memory."""
        return round_up(self.tile * self.in_features * self.activation.size_bytes, 16)

    @property
    def block_bytes(self) -> int:
        """Bytes of threadgroup memory for what a block adds: the rows, and sums of squares."""
        return self.row_bytes + 4 * self.added.norms * self.tile * self.simdgroups if self.added else 0

    @property
    def more_loads(self) -> tuple[tuple[str, int], ...]:
        """See `MatrixKernel.more_loads`."""
        types = (self.activation, *self.added.types.values()) if self.added else ()
        return tuple((str(dtype), 4) for dtype in types)

    @property
    def of_head(self) -> int:
        """Columns from one head's result to the next."""
        return self.out_features + (self.heads.rotary_dim if self.heads else 0)

    @property
    def count(self) -> str:
        """The dim that counts the rows."""
        return "rows" if self.gather or self.of_rows else "tokens"

    @property
    def formula(self) -> str:
        """The formula, for the head of the kernel."""
        x = "stream" if self.added else "x"
        x = f"{x}[rows]" if self.gather else x
        before = f"{self.added.formula}; " if self.added else ""
        return f"{before}out = {formula(self.epilogue, f'{self.norm.kind}_norm({x})' if self.norm else x)}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        e = self.epilogue
        experts = self.experts
        of_choices = f"tokens * {experts.top_k}" if experts else ""
        x = of_choices if experts and not experts.of_tokens else "tokens"
        rows = self._matrix_table(f"[{x}, {self.x_width}]")
        if e.bias:
            rows.append(f"bias       [{self.layout.rows}] {e.bias}")
        if e.residual:
            rows.append(f"residual   [tokens, {self.out_features}] {e.out}")
        if e.alpha_p:
            rows.append(f"alpha_p, alpha_n  [1] {e.alpha_p}: of the activation")
        if e.gate:
            rows.append(f"gate       [tokens, 1] {e.gate}")
        if e.times:
            rows.append(f"times      [tokens, {e.times_width}] {e.times}: {self.out_features} columns for each layer")
            rows.append("layer      [8] u32: the layer first")
        if self.gather:
            rows.append("rows       [rows] i32")
        for name, dtype in self.added.ports if self.added else ():
            shape = f"[tokens, {self.in_features}]" if name in ("added", "second") else f"[{self.in_features}]"
            rows.append(f"{name:10} {'[1]' if name == 'added_scale' else shape} {dtype}")
        if self.added and self.added.gives:
            rows.append(f"stream     [tokens, {self.in_features}] {self.activation}")
        if experts:
            rows.append(f"order      [{of_choices}] i32: choices by expert")
            rows.append("tiles      [tiles, 3] i32: expert, its first row in the order, and the row after its last")
            rows += [f"weights    [{of_choices}] f32"] if experts.weighs else []
        out = f"{of_choices or self.count}, {self.out_features}"
        if self.heads:
            rows += ["positions  [tokens] i32"] if self.heads.frequencies else []
            out = f"tokens, {self.heads.num_heads}, {self.of_head}"
        rows.append(f"out        [{out}] {e.out}")
        return "".join(f"//   {row}\n" for row in rows)


def formula(e: Epilogue, x: str) -> str:
    """The formula of a projection of x with this epilogue, for the head of a kernel."""
    bias = " + bias" if e.bias else ""
    y = f"{x} @ weight.T{bias}"
    if e.gated:
        gate, up = f"{x} @ gate.T{bias}", f"{x} @ up.T{bias}"
        if e.activation == "swiglu_oai":
            y = f"swiglu_oai({gate}, {up}), weight = [gate; up]"
        else:
            y = f"{e.activation}({gate}) * ({up}), weight = [gate; up]"
    elif e.activation:
        y = f"{e.activation}({y})"
    y = f"{e.out_scale:g} * ({y})" if e.out_scale != 1.0 else y
    y = f"soft_cap({y}, {e.out_cap:g})" if e.out_cap else y
    y = f"clamp({y}, {e.out_limit:g})" if e.out_limit else y
    y = f"times of the layer * ({y})" if e.times else y
    y = f"sigmoid(gate) * ({y})" if e.gate else y
    if e.residual:
        y = f"residual + {e.residual_scale:g} * ({y})" if e.residual_scale != 1.0 else f"{y} + residual"
    return y
