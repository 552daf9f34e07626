"""The recurrent block of the source graph: one function for each kind, by its record in the spec."""

from collections.abc import Callable
from typing import Any

from mlxr.compiler.build.build_delta import build_delta
from mlxr.compiler.build.build_ssm import build_ssm
from mlxr.compiler.build.builder import Builder
from mlxr.compiler.formats.stores import CONV_STATES
from mlxr.compiler.ir.division import Axis
from mlxr.compiler.ir.ops.causal_conv import CausalConv
from mlxr.compiler.ir.ops.elementwise import Multiply
from mlxr.compiler.ir.tensor import layer_prefix
from mlxr.compiler.spec.model import GatedDelta, LayerType, ShortConv, Ssm


def build_recurrent(b: Builder, index: int, layer: LayerType, x: str) -> str:
    """Adds the recurrent block of one layer.

    Args:
        b: the builder that gets the ops.
        index: the layer's number.
        layer: the layer's properties.
        x: the block's input, [tokens, hidden], after the norm if the model has one there.

    Returns:
        The result of its last projection, [tokens, hidden].
    """
    assert layer.recurrent is not None, f"layer {index} has a recurrent block"
    return _BUILDERS[type(layer.recurrent)](b, index, layer.recurrent, x)


def _short_conv(b: Builder, index: int, conv: ShortConv, x: str) -> str:
    prefix, hidden = f"{layer_prefix(index)}recurrent", b.spec.model.hidden_size
    channels = Axis("units", conv.channels)

    def projected(role: str) -> str:
        bias = f"{prefix}.{role}_bias" if conv.bias else None
        return b.linear(f"{prefix}.{role}", x, (conv.channels, hidden), bias, rows=channels)

    before, after, inner = (projected(role) for role in ("b", "c", "x"))
    inner = b.op(Multiply(), f"{prefix}.conv_input", {"a": before, "b": inner})
    filters = Axis("units", conv.channels, conv.taps)
    inputs = {"x": inner, "weight": b.parameter(f"{prefix}.conv", conv.channels * conv.taps, filters)}
    if conv.conv_bias:
        inputs["bias"] = b.parameter(f"{prefix}.conv_bias", conv.channels, channels)
    y = b.op(CausalConv(conv.taps), f"{prefix}.conv_result", inputs | b.states(index, CONV_STATES))
    y = b.op(Multiply(), f"{prefix}.gated", {"a": after, "b": y})
    bias = f"{prefix}.o_bias" if conv.bias else None
    return b.linear(f"{prefix}.o", y, (hidden, conv.channels), bias, columns=channels)


_BUILDERS: dict[type, Callable[[Builder, int, Any, str], str]] = {
    ShortConv: _short_conv,
    GatedDelta: build_delta,
    Ssm: build_ssm,
}
