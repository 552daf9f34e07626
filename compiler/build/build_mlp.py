"""The feed-forward block of the source graph: one network, or a mixture of experts."""

from collections.abc import Callable

from mlxr.compiler.build.builder import Builder
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.division import Axis
from mlxr.compiler.ir.ops.elementwise import Activation, ClampedGate, Multiply, Scale, SwigluOai, Xielu
from mlxr.compiler.ir.ops.experts import ExpertLinear, ExpertSum, Route
from mlxr.compiler.ir.ops.rows import GateRows
from mlxr.compiler.spec.model import Experts, Mlp


def build_mlp(b: Builder, prefix: str, mlp: Mlp, x: str, stream: str) -> list[str]:
    """Adds the feed-forward block of one layer.

    Args:
        b: the builder that gets the ops.
        prefix: the prefix of the block's names, such as `layers.3.mlp`.
        mlp: the block's properties.
        x: the block's input, [tokens, hidden], after the norm if the model has one there.
        stream: the residual stream, before that norm.

    Returns:
        The addends of the block's result, each [tokens, hidden]: the network's result, or the results of the chosen
        experts and of the shared expert.
    """
    if mlp.experts is None:
        return [_network(b, prefix, mlp, x, mlp.intermediate_size, mlp.bias, mlp.limit)]
    experts, shared, hidden = mlp.experts, mlp.experts.shared, b.hidden_size

    def normed(name: str, x: str) -> str:
        return b.norm(f"{prefix}.{name}", f"{prefix}.{name}ed", x, hidden)

    routed = normed("router_norm", stream) if experts.router_norm else x
    read = normed("experts.norm", stream) if experts.own_norms else x
    results = [_experts(b, prefix, mlp, experts, read, routed)]
    if experts.own_norms:
        results = [normed("experts.post_norm", results[0])]
    if shared is not None:
        out = _network(b, f"{prefix}.shared", mlp, x, shared.intermediate_size, False, mlp.limit_of_shared)
        if shared.gate:
            gate = b.linear(f"{prefix}.shared.router", x, (1, b.hidden_size), dtype=DType.F32)
            out = b.op(GateRows(), f"{prefix}.shared.gated_out", {"x": out, "gate": gate})
        if experts.own_norms:
            out = normed("shared.post_norm", out)
        results.append(out)
    return results


def _network(b: Builder, prefix: str, mlp: Mlp, x: str, width: int, bias: bool, limit: float | None) -> str:
    hidden = b.hidden_size

    columns = Axis("columns", width)

    def linear(role: str, x: str, shape: tuple[int, int]) -> str:
        rows, read = (None, columns) if role == "down" else (columns, None)
        named = f"{prefix}.{role}_bias" if bias else None
        return b.linear(f"{prefix}.{role}", x, shape, named, rows=rows, columns=read)

    return _feed_forward(b, prefix, mlp, x, (width, hidden), linear, limit)


def _experts(b: Builder, prefix: str, mlp: Mlp, experts: Experts, x: str, routed: str) -> str:
    """The weighted sum of the results of the experts that are chosen by what the router reads, `routed`."""
    hidden, count, top_k = b.hidden_size, experts.count, experts.per_token
    router_bias = f"{prefix}.router_bias" if experts.router_bias else None
    logits = b.linear(f"{prefix}.router", routed, (count, hidden), router_bias, DType.F32)
    if experts.router_scale != 1:
        logits = b.op(Scale(experts.router_scale), f"{prefix}.router_scaled", {"x": logits})
    ports = {"x": logits}
    if experts.selection_bias:
        ports["bias"] = b.vector(f"{prefix}.selection_bias", count)
    if experts.weight_scales:
        ports["scales"] = b.vector(f"{prefix}.expert_scales", count)
    groups = experts.groups
    in_groups = (groups.count, groups.chosen, groups.judged_by) if groups is not None else ()
    route = Route(top_k, experts.router, experts.normalise, experts.scale, *in_groups)
    chosen, weights = b.op_with_outputs(route, f"{prefix}.routed", ports, ("experts", "weights"))

    def linear(role: str, x: str, shape: tuple[int, int]) -> str:
        name = f"{prefix}.experts.{role}"
        axis = Axis("experts", count, shape[0])
        inputs = {"x": x, "weight": b.matrix(name, (count * shape[0], shape[1]), axis), "experts": chosen}
        if experts.weigh == "inputs" and role != "down":
            inputs["weights"] = weights
        if mlp.bias:
            inputs["bias"] = b.vector(f"{name}_bias", count * shape[0], axis)
        attrs = ExpertLinear(num_experts=count, top_k=top_k, dtype=b.activation)
        return b.op(attrs, f"{name}_projected", inputs)

    down = _feed_forward(b, f"{prefix}.experts", mlp, x, (mlp.intermediate_size, hidden), linear, mlp.limit)
    summed = {"weights": weights} if experts.weigh == "results" else {}
    return b.op(ExpertSum(top_k), f"{prefix}.experts.summed", {"x": down} | summed)


def _feed_forward(
    b: Builder,
    prefix: str,
    mlp: Mlp,
    x: str,
    shape: tuple[int, int],
    linear: Callable[[str, str, tuple[int, int]], str],
    limit: float | None,
) -> str:
    """Adds down(act(gate(x)) * up(x)), or down(act(up(x))); `linear` adds a projection: (role, x, shape) -> result."""
    width, hidden = shape
    activation = mlp.activation
    if not mlp.gated:
        assert activation != "swiglu_oai", "the spec refuses swiglu_oai without a gate"
        up = linear("up", x, (width, hidden))
        if activation == "xielu":
            ports = {"x": up} | {name: b.vector(f"{prefix}.{name}", 1) for name in ("alpha_p", "alpha_n")}
            return linear("down", b.op(Xielu(), f"{prefix}.activated", ports), (hidden, width))
        activated = b.op(Activation(activation), f"{prefix}.activated", {"x": up})
        return linear("down", activated, (hidden, width))
    assert activation != "xielu", "the spec refuses xielu with a gate"
    gate, up = linear("gate", x, (width, hidden)), linear("up", x, (width, hidden))
    if activation == "swiglu_oai":
        gated = b.op(SwigluOai(limit), f"{prefix}.gated", {"a": gate, "b": up})
    elif limit is not None:
        gated = b.op(ClampedGate(activation, limit), f"{prefix}.gated", {"a": gate, "b": up})
    else:
        gate = b.op(Activation(activation), f"{prefix}.activated", {"x": gate})
        gated = b.op(Multiply(), f"{prefix}.gated", {"a": gate, "b": up})
    return linear("down", gated, (hidden, width))
