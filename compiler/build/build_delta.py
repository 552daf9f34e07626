"""Gated delta nets in the source graph."""

from mlxr.compiler.build.builder import Builder
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.division import Axis
from mlxr.compiler.ir.ops.delta_net import DeltaNet
from mlxr.compiler.ir.ops.gated_norm import GatedNorm
from mlxr.compiler.ir.tensor import layer_prefix
from mlxr.compiler.spec.model import GatedDelta


def build_delta(b: Builder, index: int, delta: GatedDelta, x: str) -> str:
    """Adds the block of one layer; see `mlxr.compiler.build.build_recurrent`."""
    prefix, hidden = f"{layer_prefix(index)}recurrent", b.spec.model.hidden_size

    def of_keys(count: int) -> Axis:
        return Axis("units", delta.units, count // delta.units)

    def of_values(count: int) -> Axis:
        return Axis("units", delta.units, count // delta.units // delta.tiles, delta.tiles)

    axes = {"q": of_keys, "k": of_keys}

    def projected(role: str, width: int) -> str:
        return b.linear(f"{prefix}.{role}", x, (width, hidden), rows=axes.get(role, of_values)(width))

    def projected_by_rank(role: str, width: int) -> str:
        if delta.rank is None:
            return projected(role, width)
        low = b.linear(f"{prefix}.{role}_a", x, (delta.rank, hidden))
        return b.linear(f"{prefix}.{role}_b", low, (width, delta.rank), rows=of_values(width))

    widths = {"q": delta.keys, "k": delta.keys, "v": delta.result_width}
    inputs = {part: projected(part, width) for part, width in widths.items()}
    gate = projected_by_rank("z", delta.result_width)
    inputs |= {"a": projected_by_rank("decay", delta.decays), "b": projected("beta", delta.num_heads)}
    for part, width in widths.items():
        taps = width * delta.taps
        inputs[f"{part}_conv"] = b.parameter(f"{prefix}.{part}_conv", taps, axes.get(part, of_values)(taps))
    for port, role, width in (("rate", "a", delta.num_heads), ("dt_bias", "dt_bias", delta.decays)):
        inputs[port] = b.parameter(f"{prefix}.{role}", width, of_values(width))
    sizes = (delta.num_heads, delta.num_key_heads, delta.key_dim, delta.value_dim)
    attrs = DeltaNet(*sizes, tiled=delta.tiled, per_channel=delta.channel_decays, taps=delta.taps)
    y = b.op(attrs, f"{prefix}.answers", inputs | b.states(index, CONV_STATES, STATES))
    norm = {"x": y, "gate": gate, "weight": b.parameter(f"{prefix}.o_norm", delta.value_dim)}
    gated = GatedNorm(delta.num_heads, b.spec.model.norm.eps, delta.gate, gate_first=False, first=0)
    y = b.op(gated, f"{prefix}.gated", norm)
    return b.linear(f"{prefix}.o", y, (hidden, delta.result_width), columns=of_values(delta.result_width))
