"""All of a gated delta layer between its projections, in a decode step."""

from dataclasses import dataclass

from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.delta_net import DeltaDecode
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.arena_kernel import LANES
from mlxr.compiler.targets.cpu.kernel_parts.delta_kernel import MOST_COLUMNS, CpuDeltaKernel
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHelper, Param
from mlxr.compiler.targets.cpu.kernels.gated_norm import GATED_NORM
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuDeltaDecode(CpuDeltaKernel):
    """Convolution, rule, norm and gate of one token of each sequence.

    Attributes:
        conv_store: the number of the convolutions' inputs in the program's list of stores.
        widths: columns of the values that have x, a, b and the gate.
    """

    template = "delta_decode.jinja"
    conv_store: int
    heads: DeltaDecode
    widths: tuple[int, int, int, int]

    @property
    def params(self) -> tuple[Param, ...]:
        """The tokens' numbers, filters, numbers of heads, the norm's weight, the layer and the result."""
        tokens = tuple(Param(name, "input") for name in ("x", "a", "b_", "gate"))
        vectors = tuple(Param(name, "vector") for name in ("weight", "rate", "dt_bias", "norm"))
        return (*tokens, *vectors, Param("layer", "layer"), Param("out", "output"))

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """The rule, and the norm."""
        return (*super().helpers, GATED_NORM)

    @property
    def at(self) -> dict[str, str]:
        """Where the numbers of sequence `s` begin, in C."""
        own = self.heads
        firsts = {"x": own.q_first, "a": own.decay_first, "b": own.beta_first, "gate": own.gate_column}
        places = zip(firsts.items(), self.widths, strict=True)
        return {
            port: f"{'b_' if port == 'b' else port} + (size_t)s * {width} + {first}" for (port, first), width in places
        }

    @property
    def conv_row(self) -> int:
        """Inputs that a layer keeps of a sequence."""
        return self.heads.channels * (self.heads.taps - 1)

    @property
    def conv_slot(self) -> int:
        """Those of all layers."""
        return self.num_layers * self.conv_row

    @property
    def is_first_of_key(self) -> str:
        """Whether `head` is the first one that its key serves, in C."""
        if self.heads.tiled:
            return f"head < {self.heads.num_key_heads}"
        return "1" if self.heads.ratio == 1 else f"head % {self.heads.ratio} == 0"

    @property
    def padded_key(self) -> int:
        """Elements of a key, whole vectors."""
        return round_up(self.heads.key_dim, LANES)

    @property
    def padded_channels(self) -> int:
        """Channels of a head, whole vectors: its query, its key and its value."""
        return 2 * self.padded_key + round_up(self.heads.value_dim, LANES)

    @property
    def thread_bytes(self) -> int:
        """A prepared token, some columns of a state, the channels of a head, and its result."""
        prepared = round_up(4 * self.heads.key_dim + 2, LANES)
        rest = self.padded_channels + round_up(self.heads.value_dim, LANES)
        return 4 * (prepared + self.heads.key_dim * MOST_COLUMNS + rest)

    @property
    def formula(self) -> str:
        """The formula, for the head of the function."""
        own = self.heads
        return f"{self.label}: out = rms_norm(rule(silu(conv(x)))) * {own.activation}(gate), {own.num_heads} heads"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        names = ("x", "a", "b_", "gate")
        rows = [f"{name}  [seqs, {width}] f32" for name, width in zip(names, self.widths, strict=True)]
        rows.append(f"weight   [{self.heads.channels}, {self.heads.taps}] f32: the oldest token's first")
        rows += [f"rate     [{self.heads.num_heads}] f32", f"dt_bias  [{self.heads.decays}] f32"]
        rows += [f"norm     [{self.heads.value_dim}] f32", f"out      [seqs, {self.heads.width}] f32"]
        return "".join(f"//   {row}\n" for row in rows)


@lowers(DeltaDecode)
def lower_delta_decode(lowering: CpuLowering, op: Op, attrs: DeltaDecode) -> None:
    """Adds the call."""
    stores = dict(zip(attrs.accesses, lowering.stores_of(op), strict=True))
    widths = (lowering.width(op, "x"), lowering.width(op, "a"), lowering.width(op, "b"), lowering.width(op, "gate"))
    layers = lowering.layers_of(op, STATES)
    kernel = CpuDeltaDecode("delta_decode", stores[STATES], layers, attrs, stores[CONV_STATES], widths)
    lowering.add_call(op, kernel, {"b_": op.inputs["b"]})
