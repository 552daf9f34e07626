"""Routing and experts against NumPy's float64, one token and one expert at a time."""

from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlxr_tests.reference_ops import evaluate
from mlxr_tests.specs import floats, random_array
from mlxr_tests.tolerances import check_op

Numbers = npt.NDArray[np.float64]
EXPERTS, TOP_K, TOKENS = 5, 2, 7
ALL: dict[str, Any] = {"first_expert": None, "owned": None, "groups": 1, "top_groups": 1, "judged_by": 1}


def numbers(array: mx.array) -> Numbers:
    return floats(array).astype(np.float64)


def softmax(x: Numbers) -> Numbers:
    powers = np.exp(x - x.max())
    return np.asarray(powers / powers.sum())


def sigmoid(x: Numbers) -> Numbers:
    return np.asarray(1 / (1 + np.exp(-x)))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("router", ["softmax_topk", "topk_softmax", "sigmoid"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("top_k", [1, TOP_K, EXPERTS])
def test_route(rng: np.random.Generator, router: str, bias: bool, normalise: bool, top_k: int) -> None:
    inputs = {"x": random_array(rng, (TOKENS, EXPERTS), "f32", 2.0)}
    if bias:
        inputs["bias"] = random_array(rng, (EXPERTS,), "f32")
    attrs = {"top_k": top_k, "router": router, "normalise": normalise, "scale": 2.5, **ALL}
    made = evaluate("route", inputs, attrs)
    chosen, weights = np.array(made["experts"]), numbers(made["weights"])
    assert made["experts"].dtype == mx.int32 and made["weights"].dtype == mx.float32
    assert chosen.shape == weights.shape == (TOKENS, top_k)
    for token, logits in enumerate(numbers(inputs["x"])):
        scores = {"softmax_topk": softmax, "topk_softmax": lambda x: x, "sigmoid": sigmoid}[router](logits)
        order = scores + (numbers(inputs["bias"]) if bias else 0)
        best = sorted(range(EXPERTS), key=lambda expert: -order[expert])[:top_k]
        assert chosen[token].tolist() == best
        want = softmax(logits[best]) if router == "topk_softmax" else scores[best]
        if normalise:
            want = want / want.sum()
        np.testing.assert_allclose(weights[token], 2.5 * want, rtol=1e-5)


@pytest.mark.parametrize("judged_by", [1, 2])
def test_groups_are_judged_by_their_best(judged_by: int) -> None:
    """A bias counts for groups too, and not for weights."""
    logits = mx.array([[0.0, 0.5, 1.5, 1.4, 2.0, -9.0], [0.0, 0.5, 1.5, 1.4, 2.0, 1.2]])
    attrs: dict[str, Any] = {"top_k": 2, "router": "sigmoid", "normalise": False, "scale": 1.0, **ALL}
    made = evaluate("route", {"x": logits}, attrs | {"groups": 3, "top_groups": 1, "judged_by": judged_by})
    assert made["experts"].tolist() == [[4, 5] if judged_by == 1 else [2, 3], [4, 5]]
    biased = {"x": logits, "bias": mx.array([0.0, 0.0, 0.0, 0.0, -1.0, -1.0])}
    attrs |= {"groups": 3, "top_groups": 2, "judged_by": judged_by}
    made = evaluate("route", biased, attrs)
    assert made["experts"].tolist() == [[2, 3], [2, 3]]
    np.testing.assert_allclose(numbers(made["weights"])[0], sigmoid(np.array([1.5, 1.4])), rtol=1e-6)


def test_of_equal_experts_the_first_comes_first_and_nan_last() -> None:
    attrs: dict[str, Any] = {"top_k": 3, "router": "softmax_topk", "normalise": False, "scale": 1.0, **ALL}
    logits = mx.array([[1.0, 2.0, 2.0, 2.0, 0.0], [float("nan"), 0.0, float("nan"), 1.0, 1.0]])
    made = evaluate("route", {"x": logits}, attrs)
    assert made["experts"].tolist() == [[1, 2, 3], [3, 4, 1]]
    assert np.isfinite(np.array(made["weights"])).all()


def test_close_logits_are_told_apart_where_their_softmax_is_not() -> None:
    logits = mx.array([[0.0, 1e-9, 30.0, 2e-9, -1.0]])
    attrs: dict[str, Any] = {"top_k": 2, "router": "softmax_topk", "normalise": False, "scale": 1.0, **ALL}
    assert evaluate("route", {"x": logits}, attrs)["experts"].tolist() == [[2, 3]]


CHOSEN = [[4, 1], [0, 1], [3, 4], [1, 0], [4, 0], [1, 4], [0, 3]]
"""No token chooses expert 2."""


def one_expert(x: Numbers, weight: Numbers, bias: Numbers | None, expert: int) -> Numbers:
    rows = len(weight) // EXPERTS
    own = slice(expert * rows, (expert + 1) * rows)
    return np.asarray(weight[own] @ x + (0 if bias is None else bias[own]))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_expert_linear(rng: np.random.Generator, several: bool, bias: bool, dtype: str) -> None:
    x = random_array(rng, (TOKENS, 16 * (TOP_K if several else 1)), dtype)
    weight = random_array(rng, (EXPERTS * 6, 16), dtype, 0.3)
    inputs = {"x": x, "weight": weight, "experts": mx.array(CHOSEN)}
    if bias:
        inputs["bias"] = random_array(rng, (EXPERTS * 6,), "f32")
    attrs = {"num_experts": EXPERTS, "top_k": TOP_K, "dtype": dtype}
    out = evaluate("expert_linear", inputs, attrs)["out"]
    want = np.zeros((TOKENS, TOP_K * 6))
    for token, k in product(range(TOKENS), range(TOP_K)):
        own = numbers(x)[token, k * 16 : (k + 1) * 16] if several else numbers(x)[token]
        biases = numbers(inputs["bias"]) if bias else None
        want[token, k * 6 : (k + 1) * 6] = one_expert(own, numbers(weight), biases, CHOSEN[token][k])
    check_op("expert_linear", floats(out), want, dtype)


def test_expert_sum(rng: np.random.Generator) -> None:
    x, weights = random_array(rng, (TOKENS, TOP_K * 6), "bf16"), random_array(rng, (TOKENS, TOP_K), "f32")
    out = evaluate("expert_sum", {"x": x, "weights": weights}, {"top_k": weights.shape[1]})["out"]
    want = (numbers(x).reshape(TOKENS, TOP_K, 6) * numbers(weights)[:, :, None]).sum(1)
    check_op("expert_sum", floats(out), want, "bf16")


@pytest.mark.parametrize("activation", ["silu", "relu2", "swiglu_oai"])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm", [None, "rms", "layer"])
def test_expert_projection_is_its_parts(
    rng: np.random.Generator, activation: str, gated: bool, bias: bool, norm: str | None
) -> None:
    """Against the unfused ops, which the other tests hold against NumPy."""
    if activation == "swiglu_oai" and not gated:
        return
    x, experts = random_array(rng, (TOKENS, 16), "f32"), mx.array(CHOSEN)
    gate, up = (random_array(rng, (EXPERTS * 6, 16), "f32", 0.3) for _ in range(2))
    biases = [random_array(rng, (EXPERTS * 6,), "f32") for _ in range(2)]
    weights = [gate, up] if gated else [up]
    chosen = {"num_experts": EXPERTS, "top_k": TOP_K, "dtype": "f32"}
    inputs = {"x": x, "weight": mx.concatenate(weights), "experts": experts}
    if bias:
        inputs["bias"] = mx.concatenate(biases[: len(weights)])
    plain = x
    if norm is not None:
        inputs["norm"] = random_array(rng, (16,), "f32")
        ports = {"x": x, "weight": inputs["norm"]}
        if norm == "layer":
            ports["bias"] = inputs["norm_bias"] = random_array(rng, (16,), "f32")
        plain = evaluate("norm", ports, {"kind": norm, "eps": 0.1, "groups": 1, "residual_scale": 1.0})["out"]
    made = []
    for weight, own_bias in zip(weights, biases, strict=False):
        ports = {"x": plain, "weight": weight, "experts": experts} | ({"bias": own_bias} if bias else {})
        made.append(evaluate("expert_linear", ports, chosen)["out"])
    limit = 0.4 if activation == "swiglu_oai" else None
    if activation == "swiglu_oai":
        want = evaluate("swiglu_oai", {"a": made[0], "b": made[1]}, {"limit": limit})["out"]
    else:
        want = evaluate("activation", {"x": made[0]}, {"kind": activation})["out"]
        want = want * made[1] if gated else want
    attrs = chosen | {
        "eps": 0.1 if norm else None,
        "norm_kind": norm,
        "activation": activation,
        "gated": gated,
        "limit": limit,
    }
    out = evaluate("expert_projection", inputs, attrs)["out"]
    assert out.shape == (TOKENS, TOP_K * 6)
    check_op("expert_projection", floats(out), numbers(want), "f32")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_expert_combine(rng: np.random.Generator, bias: bool, residual: bool, dtype: str) -> None:
    x, weight = random_array(rng, (TOKENS, TOP_K * 6), dtype), random_array(rng, (EXPERTS * 16, 6), dtype, 0.3)
    inputs = {
        "x": x,
        "weight": weight,
        "experts": mx.array(CHOSEN),
        "weights": random_array(rng, (TOKENS, TOP_K), "f32"),
    }
    if bias:
        inputs["bias"] = random_array(rng, (EXPERTS * 16,), "f32")
    if residual:
        inputs["residual"] = random_array(rng, (TOKENS, 16), dtype)
    attrs = {"num_experts": EXPERTS, "top_k": TOP_K, "dtype": dtype, "residual_scale": 0.5, "shared_apart": False}
    out = evaluate("expert_combine", inputs, attrs)["out"]
    want = np.zeros((TOKENS, 16))
    for token, k in product(range(TOKENS), range(TOP_K)):
        biases = numbers(inputs["bias"]) if bias else None
        own = one_expert(numbers(x)[token, k * 6 : (k + 1) * 6], numbers(weight), biases, CHOSEN[token][k])
        want[token] += numbers(inputs["weights"])[token, k] * own
    if residual:
        want = numbers(inputs["residual"]) + 0.5 * want
    check_op("expert_combine", floats(out), want, dtype)
