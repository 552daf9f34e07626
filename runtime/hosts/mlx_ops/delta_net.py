"""Gated delta layers between their projections."""

import mlx.core as mx

from mlxr.compiler.artifact import STATES
from mlxr.compiler.ir.ops.delta_net import FILTERS, ConvDeltaHeads, DeltaDecode, DeltaNet
from mlxr.runtime.hosts.mlx_ops.causal_conv import causal_conv
from mlxr.runtime.hosts.mlx_ops.gated_delta import gated_delta
from mlxr.runtime.hosts.mlx_ops.table import evaluate, evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(DeltaNet)
def delta_net(inputs: Inputs, attrs: DeltaNet, arena: ArenaLayer | None = None) -> Outputs:
    """The convolution and the rule, of q, k and v, [tokens, ...] each."""
    x = mx.concatenate([inputs[port] for port in "qkv"], axis=1)
    weight = mx.concatenate([inputs[port] for port in FILTERS])
    return _convolved_rule(dict(inputs) | {"x": x, "weight": weight}, attrs, arena)


@evaluates(DeltaDecode)
def delta_decode(inputs: Inputs, attrs: DeltaDecode, arena: ArenaLayer | None = None) -> Outputs:
    """All of a decode step's layer between its projections, of x [seqs, channels or more]."""
    own = dict(inputs) | {"query_start": mx.arange(len(inputs["x"]) + 1)}
    for port, first, weight in (("a", attrs.decay_first, "decay_b"), ("gate", attrs.gate_column, "gate_b")):
        if attrs.rank:
            own[port] = f32(own[port])[:, first : first + attrs.rank] @ f32(own[weight]).T
    attrs = attrs.multiplied
    result = _convolved_rule(own, attrs, arena)
    parts = {"x": result["out"], "gate": own["gate"], "weight": inputs["norm"]}
    normed = evaluate(attrs.gated_norm, parts)
    return result | {"out": normed["out"]}


def _convolved_rule(inputs: Inputs, attrs: ConvDeltaHeads, arena: ArenaLayer | None) -> Outputs:
    convolved = causal_conv(inputs, attrs.convolution, arena)["out"]
    return gated_delta(dict(inputs) | dict.fromkeys("qkv", convolved) | {STATES: inputs[STATES]}, attrs.rule, arena)
