"""The base of the C kernels of attention."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.attention import PackedAttention
from mlxr.compiler.ir.ops.rope import Temperature
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.arena_kernel import LANES
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHeader, Param
from mlxr.compiler.targets.cpu.kernel_parts.matrix import Compute
from mlxr.compiler.targets.cpu.kernel_parts.rotary_kernel import CpuRotaryKernel, RotaryFields, rotary_fields
from mlxr.compiler.targets.cpu.lowering import CpuLowering
from mlxr.compiler.targets.head_gate import HeadGate, head_gate
from mlxr.compiler.targets.head_norms import HeadNorms, head_norms
from mlxr.compiler.targets.scores import cap_log2, query_scale, slopes_log2

MATRIX_TILE_BYTES = 1024
"""Bytes of a matrix tile (AMX): 16 rows of 64 bytes."""
MATRIX_TILES = CpuHeader("attend_tiles.h")
"""Attention with matrix tiles."""
_DOTS = CpuHeader("attend_dots.h")
_SLOPES = CpuHeader("attend_slopes.h")


@dataclass(frozen=True)
class CpuAttentionKernel(CpuRotaryKernel):
    """Base of the attention kernels.

    Attributes:
        scale: factor of the scores.
        window: the most keys that a query sees, its own included; None for all.
        compute: unless it is `exact`, matrix tiles of bf16 may be used if the machine has them.
        softcap: turns scores into softcap * tanh(score / softcap); None for no cap.
        gate: what multiplies the result; None for nothing.
        sinks: whether the softmax of each query head has one more logit in its denominator, [num_heads].
        chunked: whether the window is the query's chunk of `window` tokens, up to itself.
        temperature: what queries are multiplied by, which grows with their position; None for no temperature.
        norms: the norms of heads; None for none.
        latent_dim: of latent attention, whose queries are rotated and whose rows are stored: the first elements of a
            row that are its value; None for keys and values apart.
        slopes: of each head, what is taken off a score for each token of distance; empty for nothing. Matrix tiles are
            not used then.
    """

    scale: float
    window: int | None
    compute: Compute
    softcap: float | None = None
    sinks: bool = False
    chunked: bool = False
    temperature: Temperature | None = None
    gate: HeadGate | None = None
    norms: HeadNorms | None = None
    latent_dim: int | None = None
    slopes: tuple[float, ...] = ()

    @property
    def v_dim(self) -> int:
        """Elements of a value, and of a head's result."""
        return self.arena.value_dim if self.latent_dim is None else self.latent_dim

    @property
    def v_row_dim(self) -> int:
        """Elements of a row that holds a value; in q8 its scale is behind them."""
        return self.arena.value_dim

    @property
    def padded_v(self) -> int:
        """The same in scratch."""
        return round_up(self.v_row_dim, LANES)

    @property
    def v_steps(self) -> int:
        """Pairs of matrix tiles along the elements of a row that holds a value, of a key if that is longer."""
        return max(self.steps, self.tiled_v // 32)

    @property
    def tiled_v(self) -> int:
        """Elements of a value, rounded up to whole pairs of matrix tiles."""
        return round_up(self.v_dim, 32)

    @property
    def params(self) -> tuple[Param, ...]:
        """The packed projection, the table of rotations, the layer, the sinks, the gate and the heads' results."""
        sinks = (Param("sinks", "vector"),) if self.sinks else ()
        gate = (Param("gate", "input"),) if self.gate else ()
        norms = tuple(Param(name, "vector") for name, _ in self.norms.ports) if self.norms else ()
        return (*self._inputs, *norms, *sinks, *gate, Param("out", "output"))

    @property
    def has_values(self) -> bool:
        """See `CpuRotaryKernel`."""
        return self.norms is None or not self.norms.values_from_keys

    @property
    def apart(self) -> bool:
        """See `CpuKernel.apart`: attention is half of the time that a program takes to compile."""
        return True

    @property
    def query_scale(self) -> float:
        """Factor of the queries: it makes scores ready for exp2, or for tanh if they are capped."""
        return query_scale(self.scale, self.softcap)

    @property
    def cap(self) -> float:
        """Factor of the tanh of a score, which makes it ready for exp2; 0 for no cap."""
        return cap_log2(self.softcap)

    @property
    def rows_in_place(self) -> bool:
        """Whether matrix tiles may be loaded from rows of the arena, without a copy."""
        return self.cache is DType.BF16 and self.head_dim % 32 == 0 and self.arena.block_size >= LANES

    @property
    def steps(self) -> int:
        """Matrix tiles along the elements of a head."""
        return -(-self.head_dim // 32)

    @property
    def _slope_headers(self) -> tuple[CpuHeader, ...]:
        """The header of biases by distance, if there are any."""
        return (_SLOPES,) if self.slopes else ()

    @property
    def _tile_headers(self) -> tuple[CpuHeader, ...]:
        """The headers of attention with matrix tiles, and, to rows of latents, with what may take their place."""
        return (MATRIX_TILES,) if self.latent_dim is None else (_DOTS, MATRIX_TILES)

    @property
    def _may_tile(self) -> bool:
        return self.compute != "exact" and self.cache is not DType.F32 and not self.slopes


class AttentionFields(RotaryFields):
    """The fields of a `CpuAttentionKernel`."""

    scale: float
    window: int | None
    softcap: float | None
    compute: Compute
    sinks: bool
    chunked: bool
    temperature: Temperature | None
    gate: HeadGate | None
    norms: HeadNorms | None
    slopes: tuple[float, ...]


def attention_fields(lowering: CpuLowering, op: Op, attrs: PackedAttention) -> AttentionFields:
    """The fields of the kernel of an op."""
    return {
        **rotary_fields(lowering, op, attrs),
        "scale": attrs.scale,
        "window": attrs.window,
        "softcap": attrs.softcap,
        "compute": lowering.compute,
        "sinks": "sinks" in op.inputs,
        "chunked": attrs.chunked,
        "temperature": attrs.temperature,
        "gate": head_gate(op, lowering.value),
        "norms": head_norms(op, lowering.value),
        "slopes": slopes_log2(attrs.biases, attrs.num_heads),
    }
