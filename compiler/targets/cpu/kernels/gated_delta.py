"""The gated delta rule over the tokens of a step."""

from dataclasses import dataclass

from mlxr.compiler.formats.stores import STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.gated_delta import GatedDelta
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.delta_kernel import MOST_COLUMNS, CpuDeltaKernel
from mlxr.compiler.targets.cpu.kernel_parts.kernel import Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers

_TOKENS = 32  # MLXR_DELTA_TOKENS


@dataclass(frozen=True)
class CpuGatedDelta(CpuDeltaKernel):
    """The rule alone, for any number of tokens of each sequence.

    Attributes:
        widths: columns of the values that have q, k, v, a and b.
    """

    template = "gated_delta.jinja"
    widths: tuple[int, ...]

    @property
    def params(self) -> tuple[Param, ...]:
        """Queries, keys and values; decays and betas and their parameters; the layer and the result."""
        tokens = tuple(Param(port if port != "b" else "b_", "input") for port in self.heads.columns)
        vectors = (Param("rate", "vector"), Param("dt_bias", "vector"))
        return (*tokens, *vectors, Param("layer", "layer"), Param("out", "output"))

    @property
    def at(self) -> dict[str, str]:
        """By port of tokens: where the numbers of token `t` begin, in C."""
        firsts = (first for first, _ in self.heads.columns.values())
        places = zip(self.heads.columns, self.widths, firsts, strict=True)
        return {
            port: f"{'b_' if port == 'b' else port} + (size_t)(t) * {width}{f' + {first}' if first else ''}"
            for port, width, first in places
        }

    @property
    def v_row(self) -> int:
        """Columns of the value that has v."""
        return self.widths[list(self.heads.columns).index("v")]

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
        columns = zip(self.heads.columns.items(), self.widths, strict=True)
        rows = [f"{port}  [tokens, {width}] f32, {count} from {first} on" for (port, (first, count)), width in columns]
        rows += [f"rate    [{self.heads.num_heads}] f32", f"dt_bias  [{self.heads.decays}] f32"]
        rows.append(f"out      [tokens, {self.heads.width}] f32")
        return "".join(f"//   {row}\n" for row in rows)


@lowers(GatedDelta)
def lower_gated_delta(lowering: CpuLowering, op: Op, attrs: GatedDelta) -> None:
    """Adds the call."""
    layers, (store,) = lowering.layers_of(op, STATES), lowering.stores_of(op)
    widths = tuple(lowering.width(op, port) for port in attrs.columns)
    lowering.add_call(op, CpuGatedDelta("gated_delta", store, layers, attrs, widths), {"b_": op.inputs["b"]})
