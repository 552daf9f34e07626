"""Norms of rows and heads, and the choice of experts, against NumPy."""

import itertools

import numpy as np
import pytest

from mlxr.compiler.targets.cpu.kernels.norm import CpuNorm
from mlxr.compiler.targets.cpu.kernels.qk_mean_squares import CpuQkMeanSquares
from mlxr.compiler.targets.cpu.kernels.qk_norm import CpuQkNorm
from mlxr.compiler.targets.cpu.kernels.route import CpuRoute
from mlxr_tests.c_harness import check_cross_compiles, compilers, marches
from mlxr_tests.cpu_kernels import HEADERS, CpuKernels, kernels_code
from mlxr_tests.cpu_numbers import normed, sigmoid
from mlxr_tests.few import few

EPS = 1e-5
TOKENS = (1, 2, 3, 7, 20)


def norm(width, kind="rms", groups=1, residual_scale=1.0, count="tokens", **flags):
    flags = dict.fromkeys(("piece_weights", "bias", "residual"), False) | flags
    return CpuNorm("norm", width, groups, kind, EPS, residual_scale=residual_scale, count=count, **flags)


NORMS = [
    norm(72),
    norm(1000, residual=True),
    norm(264, "layer", residual=True, bias=True, residual_scale=0.25),
    norm(96, "layer", count="rows"),
    norm(96, groups=4),
    norm(120, "layer", groups=3, piece_weights=True, bias=True),
]
QK_NORMS = [
    CpuQkNorm("qk_norm", heads, kv_heads, head_dim, scope, kind, EPS, bias)
    for (heads, kv_heads, head_dim), scope, (kind, bias) in itertools.product(
        ((6, 2, 40), (4, 4, 64)), ("head", "heads", "all"), (("rms", False), ("layer", True), ("layer", False))
    )
]
PARTS = [
    CpuQkNorm("qk_norm", heads, kv, dim, "all", "rms", EPS, False, True) for heads, kv, dim in ((6, 2, 40), (4, 4, 64))
]
SQUARES = [CpuQkMeanSquares("squares", 240, 80, 400, 480, 160, counts_keys) for counts_keys in (True, False)]
ROUTES = [
    CpuRoute("route", count, top_k, router, bias, normalise, scale)
    for (count, top_k), (router, bias, normalise), scale in itertools.product(
        ((8, 2), (37, 5), (128, 8), (3, 3)),
        (
            *(("softmax_topk", False, True), ("softmax_topk", True, False), ("topk_softmax", False, False)),
            *(("sigmoid", True, True), ("sigmoid", False, False), ("topk_softmax", True, True)),
        ),
        (1.0, 2.5),
    )
] + [
    CpuRoute("route", count, top_k, router, bias, True, 2.5, *groups)
    for (count, top_k, groups), (router, bias) in itertools.product(
        ((8, 2, (4, 2, 2)), (60, 5, (3, 1, 1)), (128, 8, (8, 3, 2))), (("sigmoid", True), ("softmax_topk", False))
    )
]
BUILDS = [*((march, compilers()[0]) for march in marches()), *(("native", other) for other in compilers()[1:])]


CHOSEN = [("native", compilers()[0])]


@pytest.fixture(scope="module", params=few(BUILDS, CHOSEN, whole=True), ids=lambda build: f"{build[0]}-{build[1][-1]}")
def kernels(request):
    threads = (2, 1, 3, 5)[BUILDS.index(request.param) % 4]
    with CpuKernels([*NORMS, *QK_NORMS, *PARTS, *SQUARES, *ROUTES], threads, *request.param) as built:
        yield built


def floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def run(kernels, kernel, given, tokens):
    logit_rows = np.arange(tokens, dtype=np.int32)
    kernels.run(kernel, [given[param.name] for param in kernel.params], tokens, logit_rows=logit_rows)


def check(got, want):
    assert np.max(np.abs(got - want)) <= 3e-6 * np.max(np.abs(want))


@pytest.mark.parametrize("kernel", NORMS, ids=lambda k: f"{k.kind}-{k.width}-{k.groups}")
def test_norm(kernels, kernel):
    rng = np.random.default_rng(0)
    weights = kernel.width if kernel.piece_weights else kernel.columns
    for tokens in TOKENS:
        given = {"x": floats(rng, tokens, kernel.width) + 3, "residual": floats(rng, tokens, kernel.width)}
        given |= {"weight": floats(rng, weights), "bias": floats(rng, weights)}
        given["out"] = np.full((tokens + 1, kernel.width), 7, np.float32)
        run(kernels, kernel, given, tokens)
        pieces = given["x"].astype(np.float64).reshape(tokens, kernel.groups, kernel.columns)
        weight, bias = (given[name].reshape(-1, kernel.columns) for name in ("weight", "bias"))
        want = normed(kernel.kind, pieces, weight, bias if kernel.bias else None, EPS).reshape(tokens, -1)
        check(given["out"][:tokens], want * kernel.residual_scale + given["residual"] * kernel.residual)
        assert np.all(given["out"][tokens] == 7)


@pytest.mark.parametrize("kernel", QK_NORMS, ids=lambda k: f"{k.scope}-{k.kind}-{k.bias}-{k.head_dim}")
def test_qk_norm(kernels, kernel):
    rng = np.random.default_rng(1)
    widths = kernel.q_width, kernel.kv_width
    for tokens in TOKENS:
        given = {"qkv": floats(rng, tokens, kernel.qkv_width) + 2}
        given["out"] = np.full((tokens + 1, kernel.qkv_width), 7, np.float32)
        wants, at = [], 0
        for name, width in zip("qk", widths, strict=True):
            weight, bias = (floats(rng, kernel.head_dim if kernel.scope == "head" else width) for _ in range(2))
            given |= {f"{name}_norm": weight, f"{name}_norm_bias": bias}
            columns = width if kernel.scope == "all" else kernel.head_dim
            x = given["qkv"][:, at : at + width].astype(np.float64).reshape(tokens, -1, columns)
            bias = bias.reshape(-1, columns) if kernel.bias else None
            wants.append(normed(kernel.kind, x, weight.reshape(-1, columns), bias, EPS).reshape(tokens, width))
            at += width
        run(kernels, kernel, given, tokens)
        check(given["out"][:tokens, :at], np.concatenate(wants, axis=1))
        np.testing.assert_array_equal(given["out"][:tokens, at:], given["qkv"][:, at:])
        assert np.all(given["out"][tokens] == 7)


@pytest.mark.parametrize("kernel", PARTS, ids=lambda k: f"{k.head_dim}")
def test_qk_norm_of_part(kernels, kernel):
    """By the mean squares of the columns of all ranks, of which these are some."""
    rng = np.random.default_rng(2)
    for tokens in TOKENS:
        given = {"qkv": floats(rng, tokens, kernel.qkv_width), "mean_squares": floats(rng, tokens, 2) ** 2}
        given |= {"q_norm": floats(rng, kernel.q_width), "k_norm": floats(rng, kernel.kv_width)}
        given["out"] = np.full((tokens + 1, kernel.qkv_width), 7, np.float32)
        run(kernels, kernel, given, tokens)
        scales = 1 / np.sqrt(given["mean_squares"].astype(np.float64) + EPS)
        weights = np.concatenate([given["q_norm"], given["k_norm"], np.ones(kernel.kv_width)])
        widths = (kernel.q_width, kernel.kv_width, kernel.kv_width)
        of_columns = np.repeat(np.column_stack([scales, np.ones(tokens)]), widths, axis=1)
        check(given["out"][:tokens], given["qkv"] * of_columns * weights)
        assert np.all(given["out"][tokens] == 7)


@pytest.mark.parametrize("kernel", SQUARES, ids=lambda k: f"{k.counts_keys}")
def test_qk_mean_squares(kernels, kernel):
    rng = np.random.default_rng(3)
    for tokens in TOKENS:
        qkv, out = floats(rng, tokens, kernel.columns), np.full((tokens + 1, 2), 7, np.float32)
        run(kernels, kernel, {"qkv": qkv, "out": out}, tokens)
        squares = qkv.astype(np.float64) ** 2
        check(out[:tokens, 0], squares[:, :240].sum(axis=1) / 480)
        check(out[:tokens, 1], kernel.counts_keys * squares[:, 240:320].sum(axis=1) / 160)
        assert np.all(out[tokens] == 7)


def routed(kernel, x, bias):
    """Experts and weights: the best first, the lower number of equal ones."""
    x = x.astype(np.float64)
    probabilities = np.exp(x - x.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    scores = {"softmax_topk": probabilities, "topk_softmax": x, "sigmoid": sigmoid(x)}[kernel.router]
    keys = scores + bias if kernel.bias else scores if kernel.groups > 1 else x
    for row in keys if kernel.groups > 1 else ():
        judged = [sum(np.sort(group)[-kernel.judged_by :]) for group in np.split(row, kernel.groups)]
        for group in np.argsort(-np.array(judged), kind="stable")[kernel.top_groups :]:
            np.split(row, kernel.groups)[group][:] = -np.inf
    experts = np.argsort(-keys, axis=1, kind="stable")[:, : kernel.top_k]
    weights = np.take_along_axis(scores, experts, axis=1)
    if kernel.router == "topk_softmax":
        weights = np.exp(weights - weights.max(axis=1, keepdims=True))
    if kernel.normalise or kernel.router == "topk_softmax":
        weights = weights / weights.sum(axis=1, keepdims=True)
    return experts, weights * kernel.scale


def route(kernels, kernel, x, bias):
    given = {"x": x, "bias": bias, "experts": np.full((len(x) + 1, kernel.top_k), -7, np.int32)}
    given["weights"] = np.full((len(x) + 1, kernel.top_k), 7, np.float32)
    run(kernels, kernel, given, len(x))
    assert np.all(given["experts"][-1] == -7) and np.all(given["weights"][-1] == 7)
    return given["experts"][:-1], given["weights"][:-1]


@pytest.mark.parametrize("kernel", ROUTES, ids=lambda k: f"{k.router}-{k.num_experts}-{k.bias}-{k.scale}")
def test_route(kernels, kernel):
    rng = np.random.default_rng(2)
    for tokens in TOKENS:
        x, bias = floats(rng, tokens, kernel.num_experts) * 3, floats(rng, kernel.num_experts)
        experts, weights = route(kernels, kernel, x, bias)
        want_experts, want_weights = routed(kernel, x, bias)
        np.testing.assert_array_equal(experts, want_experts)
        check(weights, want_weights)


@pytest.mark.parametrize("kernel", ROUTES, ids=lambda k: f"{k.router}-{k.num_experts}-{k.bias}-{k.scale}")
def test_experts_are_experts_whatever_the_logits_are(kernels, kernel):
    """Of equal ones the first; and with infinities and what is no number, distinct ones that exist."""
    n, nothing = kernel.num_experts, np.zeros(kernel.num_experts, np.float32)
    experts, weights = route(kernels, kernel, np.zeros((2, n), np.float32), nothing)
    np.testing.assert_array_equal(experts, np.tile(np.arange(kernel.top_k), (2, 1)))
    assert np.all(weights == weights[0, 0])
    odd = np.array([np.nan, np.inf, -np.inf], np.float32)
    rows = [np.full(n, number, np.float32) for number in odd] + [np.resize(odd, n)]
    for bias in (nothing, np.resize(odd, n)):
        experts, _ = route(kernels, kernel, np.array(rows), bias)
        assert all(len(set(row)) == kernel.top_k and set(row) <= set(range(n)) for row in experts.tolist())


@pytest.mark.long
@pytest.mark.parametrize("cpu", ["generic", "apple_m1"])
def test_compiles_for_arm(cpu):
    kernels = [*NORMS, *QK_NORMS, *PARTS, *SQUARES, *ROUTES]
    used = ", ".join(f"kernel_{index}" for index in range(len(kernels)))
    code = f"{kernels_code(kernels)}\nvoid *all_of_them[] = {{{used}}};\n"
    check_cross_compiles(HEADERS, code, "aarch64-linux-gnu", cpu)
