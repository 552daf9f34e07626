"""The base of the kernels that attend."""

from dataclasses import KW_ONLY, dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.attention import PackedAttention
from mlxr.compiler.ir.ops.rope import Temperature
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.head_gate import HeadGate, head_gate
from mlxr.compiler.targets.head_norms import HeadNorms, head_norms
from mlxr.compiler.targets.metal.kernel_parts.rope_kernel import RopeFields, RopeKernel, rope_fields
from mlxr.compiler.targets.metal.lowering import MetalLowering
from mlxr.compiler.targets.scores import LOG2_E, cap_log2, query_scale, slopes_log2


@dataclass(frozen=True)
class AttentionKernel(RopeKernel):
    """Base of the kernels that attend.

    Attributes:
        scale: factor of the scores.
        window: tokens that a query sees, itself included; None: all.
        softcap: turns scores into softcap * tanh(score / softcap); None: no cap.
        chunked: whether the window is the query's chunk of `window` tokens, up to itself.
        temperature: what queries are multiplied by, which grows with their position; None: no temperature.
        gate: what multiplies the result; None: nothing.
        norms: the norms of heads; None: none.
        sinks: element type of the sinks, which are one more score in the softmax of each head; None: no sinks.
        slopes: of each head, what is taken off a score for each token of distance; empty: nothing.
    """

    scale: float
    window: int | None
    softcap: float | None
    chunked: bool
    temperature: Temperature | None
    sinks: DType | None
    _: KW_ONLY
    gate: HeadGate | None = None
    norms: HeadNorms | None = None
    slopes: tuple[float, ...] = ()

    @property
    def has_values(self) -> bool:
        """See `RopeKernel`."""
        return self.norms is None or not self.norms.values_from_keys

    @property
    def query_scale(self) -> float:
        """Factor of the queries: it makes scores ready for exp2, or for tanh if they are capped."""
        return query_scale(self.scale, self.softcap)

    @property
    def cap_log2(self) -> float:
        """The cap of scores that are ready for exp2."""
        assert self.softcap, "only capped scores have a cap"
        return cap_log2(self.softcap)

    @property
    def log2_e(self) -> float:
        """Factor of the sinks: it makes them ready for exp2."""
        return LOG2_E

    @property
    def sink_ports(self) -> tuple[Port, ...]:
        """The ports of the sinks and of the gate, if there are any."""
        sinks: tuple[Port, ...] = (("sinks", self.sinks),) if self.sinks else ()
        return (*sinks, ("gate", self.gate.dtype)) if self.gate else sinks

    @property
    def suits_mma(self) -> bool:
        """Whether matrix instructions take these types and heads."""
        suits = self.head_dim in (64, 128) and not self.values_differ
        return self.activation.is_16_bit and self.cache is self.activation and suits

    @property
    def weight_exponent(self) -> int:
        """Matrix instructions take weights up to 2 to this power: f16 has more numbers above 1 than below."""
        return 14 if self.activation is DType.F16 else 0


class AttentionFields(RopeFields):
    """The fields of `AttentionKernel`."""

    scale: float
    window: int | None
    softcap: float | None
    chunked: bool
    temperature: Temperature | None
    sinks: DType | None
    gate: HeadGate | None
    norms: HeadNorms | None
    slopes: tuple[float, ...]


def attention_fields(lowering: MetalLowering, op: Op) -> AttentionFields:
    """The fields of an op's kernel."""
    attrs = op.attrs_as(PackedAttention)
    return {
        **rope_fields(lowering, op),
        "scale": attrs.scale,
        "window": attrs.window,
        "softcap": attrs.softcap,
        "chunked": attrs.chunked,
        "temperature": attrs.temperature,
        "sinks": lowering.optional_dtype(op, "sinks"),
        "gate": head_gate(op, lowering.value),
        "norms": head_norms(op, lowering.value),
        "slopes": slopes_log2(attrs.biases, attrs.num_heads),
    }
