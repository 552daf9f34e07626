"""Mixture of experts: the choice of experts, and projections by the chosen experts' matrices alone.

Which experts are chosen is read back when the function is called, so that only theirs are multiplied.
"""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.ir.ops.experts import (
    ExpertCombine,
    ExpertLinear,
    ExpertProduct,
    ExpertProjection,
    ExpertSum,
    Route,
    RoutedProjection,
)
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.mlx_ops.activations import activate_projected
from mlxr.runtime.hosts.mlx_ops.normalise import add_residual, normalise_input
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(Route)
def route(inputs: Inputs, attrs: Route, arena: ArenaLayer | None = None) -> Outputs:
    """The top_k experts of each token, best first, and their weights, of router logits x [tokens, experts].

    Of equal experts the first comes first, and a logit that is no number is the least of all. A bias [experts] counts
    for the choice alone. Experts of other ranks are -1.
    """
    logits, top_k, router = f32(inputs["x"]), attrs.top_k, attrs.router
    logits = mx.where(mx.isnan(logits), -mx.inf, logits)
    scored = logits
    if router == "softmax_topk":
        scored = mx.softmax(logits, axis=-1)
    elif router == "sigmoid":
        scored = mx.sigmoid(logits)
    biased = scored + f32(inputs["bias"]) if "bias" in inputs else scored
    # Without bias or groups the logits choose: softmax and sigmoid keep their order, but rounding makes ties.
    choosing = np.array(biased if "bias" in inputs or attrs.groups > 1 else logits)
    if attrs.groups > 1:
        choosing = _in_best_groups(choosing, attrs)
    chosen = mx.array(np.argsort(-choosing, axis=-1, kind="stable")[:, :top_k].astype(np.int32))
    weights = mx.take_along_axis(scored, chosen, axis=-1)
    if router == "topk_softmax":
        weights = mx.softmax(weights, axis=-1)
    elif attrs.normalise:
        weights = weights / mx.sum(weights, axis=-1, keepdims=True)
    if "scales" in inputs:
        weights = weights * f32(inputs["scales"])[chosen]
    if attrs.first_expert is not None and attrs.owned is not None:
        own = chosen - attrs.first_expert
        chosen = mx.where((own >= 0) & (own < attrs.owned), own, -1)
    return {"experts": chosen, "weights": weights * attrs.scale}


def _in_best_groups(scores: npt.NDArray[np.float32], attrs: Route) -> npt.NDArray[np.float32]:
    """The scores [tokens, experts], minus infinity outside of a token's best groups; of equal groups the first wins."""
    of_groups = scores.reshape(len(scores), attrs.groups, -1)
    judged = np.sort(of_groups, axis=-1)[:, :, -attrs.judged_by :].sum(axis=-1)
    order = np.argsort(-judged, axis=-1, kind="stable")
    chosen = np.zeros(judged.shape, bool)
    np.put_along_axis(chosen, order[:, : attrs.top_groups], True, axis=-1)
    return np.where(chosen[:, :, None], of_groups, -np.inf).reshape(scores.shape)


@evaluates(ExpertLinear)
def expert_linear(inputs: Inputs, attrs: ExpertLinear, arena: ArenaLayer | None = None) -> Outputs:
    """The product weights * x @ weight[e].T + bias[e] of each chosen expert e.

    x [tokens, K] or [tokens, top_k * K], weight [E * F, K] -> [tokens, top_k * F].
    """
    y = _multiply(f32(inputs["x"]), inputs["weight"], inputs.get("bias"), inputs, attrs)
    return {"out": y.reshape(len(inputs["x"]), -1).astype(MLX_DTYPES[str(attrs.dtype)])}


@evaluates(ExpertSum)
def expert_sum(inputs: Inputs, attrs: ExpertSum, arena: ArenaLayer | None = None) -> Outputs:
    """The sum of x [tokens, top_k * F] over the experts by their weights [tokens, top_k], if any -> [tokens, F]."""
    x = inputs["x"]
    return {"out": _sum(f32(x).reshape(len(x), attrs.top_k, -1), inputs.get("weights")).astype(x.dtype)}


@evaluates(ExpertProjection)
def expert_projection(inputs: Inputs, attrs: ExpertProjection, arena: ArenaLayer | None = None) -> Outputs:
    """The product act(weights * norm(x) @ weight[e].T + bias[e]) of each chosen expert e.

    x [tokens, K] -> [tokens, top_k * F']. Where gated, weight and bias are all experts' gates, then all experts' ups.
    """
    x = normalise_input(f32(inputs["x"]), inputs, attrs.norm)
    halves = 2 if attrs.gated else 1
    weights = mx.split(inputs["weight"], halves)
    biases = mx.split(inputs["bias"], halves) if "bias" in inputs else [None] * halves
    products = [_multiply(x, weight, bias, inputs, attrs) for weight, bias in zip(weights, biases, strict=True)]
    y = activate_projected(mx.concatenate(products, axis=-1), attrs.activation, attrs.gated, attrs.limit)
    return {"out": y.reshape(len(x), -1).astype(MLX_DTYPES[str(attrs.dtype)])}


@evaluates(RoutedProjection)
def routed_projection(inputs: Inputs, attrs: RoutedProjection, arena: ArenaLayer | None = None) -> Outputs:
    """The choice of experts, their first products, and those of a shared expert and of its gate, if there are any."""
    ports = {"bias": "selection_bias", "scales": "expert_scales"}
    more = {name: inputs[port] for name, port in ports.items() if port in inputs}
    outputs = route({"x": inputs["logits"]} | more, attrs.route, arena)
    chosen = {"experts": outputs["experts"]} | ({"weights": outputs["weights"]} if attrs.weighs else {})
    outputs |= expert_projection({**inputs, **chosen}, attrs, arena)
    if attrs.weighs:
        del outputs["weights"]
    own = {"norm": inputs["shared_norm"]} if "shared_norm" in inputs else {}
    x = normalise_input(f32(inputs["x"]), {**inputs, **own}, attrs.norm)
    if "shared" in inputs:
        y = activate_projected(x @ f32(inputs["shared"]).T, attrs.activation, attrs.gated, attrs.shared_limit)
        outputs["shared_out"] = y.astype(MLX_DTYPES[str(attrs.dtype)])
    if "gate_weight" in inputs:
        outputs["shared_gate"] = x @ f32(inputs["gate_weight"]).T
    return outputs


@evaluates(ExpertCombine)
def expert_combine(inputs: Inputs, attrs: ExpertCombine, arena: ArenaLayer | None = None) -> Outputs:
    """The sum residual + residual_scale * (sum of weights * (x @ weight[e].T + bias[e]) + the shared expert's).

    x [tokens, top_k * F], weight [E * H, F] -> [tokens, H].
    """
    x, bias = f32(inputs["x"]), inputs.get("bias")
    unweighed = {port: value for port, value in inputs.items() if port != "weights"}
    y = _sum(_multiply(x, inputs["weight"], bias, unweighed, attrs), inputs.get("weights"))
    if "shared" in inputs:
        shared = f32(inputs["shared_x"]) @ f32(inputs["shared"]).T
        if attrs.shared_apart:
            dtype = MLX_DTYPES[str(attrs.dtype)]
            return {"out": y.astype(dtype), "shared_out": shared.astype(dtype)}
        y = y + (shared * mx.sigmoid(f32(inputs["shared_gate"])) if "shared_gate" in inputs else shared)
    return {"out": add_residual(y, inputs, attrs.residual_scale).astype(MLX_DTYPES[str(attrs.dtype)])}


def _multiply(x: mx.array, weight: mx.array, bias: mx.array | None, inputs: Inputs, attrs: ExpertProduct) -> mx.array:
    """The chosen experts' products, of x times their weights if there are any, [tokens, top_k, F]; zeros for -1.

    x [tokens, K] or [tokens, top_k * K], weight [E * F, K], bias [E * F], experts and weights [tokens, top_k].
    """
    chosen = np.array(inputs["experts"])
    tokens, top_k = chosen.shape
    pieces = x.reshape(tokens, -1, weight.shape[1])
    if "weights" in inputs:
        pieces = pieces * f32(inputs["weights"])[..., None]
    rows = weight.shape[0] // attrs.num_experts
    order = np.argsort(chosen, axis=None, kind="stable")
    products = []
    for expert in np.unique(chosen):
        pairs = np.flatnonzero(chosen == expert)
        if expert < 0:
            products.append(mx.zeros((len(pairs), rows)))
            continue
        own = slice(int(expert) * rows, (int(expert) + 1) * rows)
        of_token = pieces[mx.array(pairs // top_k), mx.array(pairs % top_k if pieces.shape[1] > 1 else pairs * 0)]
        y = of_token @ f32(weight[own]).T
        products.append(y if bias is None else y + f32(bias[own]))
    return mx.concatenate(products)[mx.array(np.argsort(order, kind="stable"))].reshape(tokens, top_k, rows)


def _sum(y: mx.array, weights: mx.array | None) -> mx.array:
    """The sum of y [tokens, top_k, F], by weights [tokens, top_k] if there are any -> [tokens, F]."""
    return mx.sum(y if weights is None else y * f32(weights)[..., None], axis=1)
