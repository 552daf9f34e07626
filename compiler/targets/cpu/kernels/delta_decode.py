"""All of a gated delta layer between its projections, in a decode step."""

from dataclasses import dataclass, replace

from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.delta_net import DeltaDecode
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.columns import Columns, columns_at
from mlxr.compiler.targets.cpu.kernel_parts.arena_kernel import LANES
from mlxr.compiler.targets.cpu.kernel_parts.delta_kernel import MOST_COLUMNS, CpuDeltaKernel
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.kernel_parts.region import Region, place_regions, regions_bytes
from mlxr.compiler.targets.cpu.kernels.gated_norm import GATED_NORM
from mlxr.compiler.targets.cpu.kernels.head_product import CpuHeads, heads_kernel
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuDeltaDecode(CpuDeltaKernel):
    """Convolution, rule, norm and gate of one token of each sequence.

    Attributes:
        conv_store: the number of the convolutions' inputs in the program's list of stores.
        x, a, b, gate: where their inputs have them; x has queries, keys and values.
        products: the products that make decays and gates of columns of theirs; none if they are the numbers.
        sequences: the most sequences of a step.
    """

    template = "delta_decode.jinja"
    conv_store: int
    heads: DeltaDecode
    x: Columns
    a: Columns
    b: Columns
    gate: Columns
    products: tuple[CpuHeads, ...]
    sequences: int

    @property
    def calls(self) -> tuple[CpuKernel, ...]:
        """The products."""
        return self.products

    @property
    def params(self) -> tuple[Param, ...]:
        """The tokens' numbers, filters, numbers of heads, the norm's weight, matrices, the layer and the result."""
        tokens = tuple(Param(name, "input") for name in ("x", "a", "b_", "gate"))
        vectors = tuple(Param(name, "vector") for name in ("weight", "rate", "dt_bias", "norm"))
        matrices = tuple(Param(port, "matrix") for port in self.heads.head_products)
        return (*tokens, *vectors, *matrices, Param("layer", "layer"), Param("out", "output"))

    @property
    def regions(self) -> tuple[Region, ...]:
        """What the products make, in the scratch that threads share, behind the products' own."""
        if not self.products:
            return ()
        own = max(product.shared_bytes for product in self.products)
        results = zip(("decays", "gates"), self.products, strict=True)
        made = tuple((name, "float", (self.sequences, product.out_width)) for name, product in results)
        return place_regions((("own", "uint8_t", (own,)), *made))

    @property
    def shared_bytes(self) -> int:
        """The products' own, and their results."""
        return regions_bytes(self.regions) if self.regions else 0

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """The rule, and the norm."""
        return (*super().helpers, GATED_NORM)

    @property
    def columns(self) -> dict[str, Columns]:
        """Where inputs of tokens have what is read of them, by port."""
        return {"x": self.x, "a": self.a, "b": self.b, "gate": self.gate}

    @property
    def conv_row(self) -> int:
        """Inputs that a layer keeps of a sequence."""
        return self.heads.channels * (self.heads.taps - 1)

    @property
    def conv_slot(self) -> int:
        """Inputs in a slot: those of all layers."""
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
        own = 4 * (prepared + self.heads.key_dim * MOST_COLUMNS + rest)
        return max([own, *(product.thread_bytes for product in self.products)])

    @property
    def formula(self) -> str:
        """The formula, for the head of the function."""
        own = self.heads
        return f"{self.label}: out = rms_norm(rule(silu(conv(x)))) * {own.activation}(gate), {own.num_heads} heads"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        named = {"b_" if port == "b" else port: columns for port, columns in self.columns.items()}
        rows = [f"{name}  [seqs, {columns.width}] f32" for name, columns in named.items()]
        rows.append(f"weight   [{self.heads.channels}, {self.heads.taps}] f32: the oldest token's first")
        rows += [f"rate     [{self.heads.num_heads}] f32", f"dt_bias  [{self.heads.decays}] f32"]
        for port, product in zip(self.heads.head_products, self.products, strict=True):
            rows.append(f"{port:8} [{product.out_width}, {product.in_features}] {product.segments[0].format}")
        rows += [f"norm     [{self.heads.value_dim}] f32", f"out      [seqs, {self.heads.width}] f32"]
        return "".join(f"//   {row}\n" for row in rows)


@lowers(DeltaDecode)
def lower_delta_decode(lowering: CpuLowering, op: Op, attrs: DeltaDecode) -> None:
    """Adds the call.

    Raises:
        PlanError: the rows of a quantised matrix do not fill whole panels.
    """
    stores = dict(zip(attrs.accesses, lowering.stores_of(op), strict=True))
    firsts = {"x": attrs.q_first, "a": attrs.decay_first, "b": attrs.beta_first, "gate": attrs.gate_column}
    columns = columns_at(lowering, op, firsts)
    matrices = {port: lowering.value(op, port) for port in attrs.head_products}
    factors = {"decay_b": columns["a"], "gate_b": columns["gate"]}
    products = tuple(
        # One head: all heads multiply the same columns.
        heads_kernel(lowering, replace(product, num_heads=1), matrices[port], factors[port].width)
        for port, product in attrs.head_products.items()
    )
    kernel = CpuDeltaDecode(
        "delta_decode",
        stores[STATES],
        lowering.layers_of(op, STATES),
        attrs,
        stores[CONV_STATES],
        **columns,
        products=products,
        sequences=lowering.phase_tokens,
    )
    parts = {port: value.parts[0] for port, value in matrices.items()}
    lowering.add_call(op, kernel, {"b_": op.inputs["b"]} | parts)
