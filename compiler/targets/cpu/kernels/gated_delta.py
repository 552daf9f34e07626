"""The gated delta rule over the tokens of a step."""

from dataclasses import dataclass

from mlxr.compiler.formats.stores import STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.gated_delta import GatedDelta
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.columns import Columns, columns_at
from mlxr.compiler.targets.cpu.kernel_parts.delta_kernel import MOST_COLUMNS, CpuDeltaKernel
from mlxr.compiler.targets.cpu.kernel_parts.kernel import Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers

_TOKENS = 32  # MLXR_DELTA_TOKENS


@dataclass(frozen=True)
class CpuGatedDelta(CpuDeltaKernel):
    """The rule alone, for any number of tokens of each sequence.

    Attributes:
        q, k, v, a, b: where their inputs have them.
    """

    template = "gated_delta.jinja"
    q: Columns
    k: Columns
    v: Columns
    a: Columns
    b: Columns

    @property
    def params(self) -> tuple[Param, ...]:
        """Queries, keys and values; decays and betas and their parameters; the layer and the result."""
        tokens = tuple(Param(port if port != "b" else "b_", "input") for port in self.columns)
        vectors = (Param("rate", "vector"), Param("dt_bias", "vector"))
        return (*tokens, *vectors, Param("layer", "layer"), Param("out", "output"))

    @property
    def columns(self) -> dict[str, Columns]:
        """Where inputs of tokens have what is read of them, by port."""
        return {"q": self.q, "k": self.k, "v": self.v, "a": self.a, "b": self.b}

    @property
    def thread_bytes(self) -> int:
        """Prepared tokens, and the state of a head."""
        prepared = _TOKENS * round_up(4 * self.heads.key_dim + 2, 16)
        return 4 * (prepared + self.heads.key_dim * round_up(self.heads.value_dim, MOST_COLUMNS))

    @property
    def formula(self) -> str:
        """The formula, for the head of the function."""
        return f"{self.label}: S = g S + k (x) beta (v - g S^T k), out = S^T q, of {self.heads.num_heads} heads"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        counts = {port: count for port, (_, count) in self.heads.columns.items()}
        rows = [
            f"{port}  [tokens, {c.width}] f32, {counts[port]} from {c.first} on" for port, c in self.columns.items()
        ]
        rows += [f"rate    [{self.heads.num_heads}] f32", f"dt_bias  [{self.heads.decays}] f32"]
        rows.append(f"out      [tokens, {self.heads.width}] f32")
        return "".join(f"//   {row}\n" for row in rows)


@lowers(GatedDelta)
def lower_gated_delta(lowering: CpuLowering, op: Op, attrs: GatedDelta) -> None:
    """Adds the call."""
    layers, (store,) = lowering.layers_of(op, STATES), lowering.stores_of(op)
    columns = columns_at(lowering, op, {port: first for port, (first, _) in attrs.columns.items()})
    kernel = CpuGatedDelta("gated_delta", store, layers, attrs, **columns)
    lowering.add_call(op, kernel, {"b_": op.inputs["b"]})
