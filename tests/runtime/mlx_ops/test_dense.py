"""Dense ops against the same mathematics in NumPy's float64, in every element type."""

import math
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlxr.runtime.mlx_arrays import MLX_DTYPES
from mlxr.runtime.mlx_ops import evaluate, evaluate_projection
from mlxr_tests.specs import floats, random_array
from mlxr_tests.tolerances import check_op

DTYPES = ["f32", "f16", "bf16"]
Numbers = npt.NDArray[np.float64]


def numbers(array: mx.array) -> Numbers:
    return floats(array).astype(np.float64)


def normalise(x: Numbers, weight: Numbers, eps: float) -> Numbers:
    normed: Numbers = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    return normed


ACTIVATIONS: dict[str, Any] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5)),
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
}


def check(out: mx.array, want: Numbers, dtype: str) -> None:
    assert out.dtype == MLX_DTYPES[dtype]
    check_op("out", floats(out), want, dtype)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("table_dtype", DTYPES)
def test_embed(rng: np.random.Generator, dtype: str, table_dtype: str) -> None:
    table = random_array(rng, (11, 6), table_dtype)
    out = evaluate("embed", {"ids": mx.array([3, 0, 10, 3]), "table": table}, {"dtype": dtype})["out"]
    check(out, numbers(table)[[3, 0, 10, 3]], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_rms_norm(rng: np.random.Generator, dtype: str, eps: float) -> None:
    x, weight = random_array(rng, (5, 48), dtype), random_array(rng, (48,), "f32")
    out = evaluate("rms_norm", {"x": x, "weight": weight}, {"eps": eps})["out"]
    check(out, normalise(numbers(x), numbers(weight), eps), dtype)


def test_rms_norm_squares_in_fp32(rng: np.random.Generator) -> None:
    x = random_array(rng, (2, 48), "f16", 3000.0)
    out = evaluate("rms_norm", {"x": x, "weight": mx.ones(48)}, {"eps": 1e-5})["out"]
    check(out, normalise(numbers(x), np.ones(48), 1e-5), "f16")


@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear(rng: np.random.Generator, x_dtype: str, weight_dtype: str, dtype: str) -> None:
    x, weight = random_array(rng, (5, 48), x_dtype), random_array(rng, (24, 48), weight_dtype)
    bias = random_array(rng, (24,), weight_dtype)
    inputs = {"x": x, "weight": weight}
    want = numbers(x) @ numbers(weight).T
    check(evaluate("linear", inputs, {"dtype": dtype})["out"], want, dtype)
    check(evaluate("linear", inputs | {"bias": bias}, {"dtype": dtype})["out"], want + numbers(bias), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation(rng: np.random.Generator, kind: str, dtype: str) -> None:
    x = random_array(rng, (5, 48), dtype, 3.0)
    check(evaluate("activation", {"x": x}, {"kind": kind})["out"], ACTIVATIONS[kind](numbers(x)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise(rng: np.random.Generator, dtype: str) -> None:
    a, b = random_array(rng, (5, 48), dtype), random_array(rng, (5, 48), dtype)
    check(evaluate("multiply", {"a": a, "b": b}, {})["out"], numbers(a) * numbers(b), dtype)
    check(evaluate("add", {"a": a, "b": b}, {})["out"], numbers(a) + numbers(b), dtype)


@pytest.mark.parametrize("rows", [[4], [0, 2, 2], []])
def test_gather_rows(rng: np.random.Generator, rows: list[int]) -> None:
    x = random_array(rng, (5, 48), "bf16")
    out = evaluate("gather_rows", {"x": x, "rows": mx.array(np.array(rows, dtype=np.int32))}, {})["out"]
    assert out.shape == (len(rows), 48)
    check(out, numbers(x)[rows] if rows else np.zeros((0, 48)), "bf16")


def test_split(rng: np.random.Generator) -> None:
    x = random_array(rng, (5, 48), "bf16")
    out = evaluate("split", {"x": x}, {"q": 24, "k": 16, "v": 8})
    for port, columns in (("q", slice(0, 24)), ("k", slice(24, 40)), ("v", slice(40, 48))):
        check(out[port], numbers(x)[:, columns], "bf16")


PORTS: list[set[str]] = [
    set(),
    {"norm"},
    {"bias"},
    {"residual"},
    {"rows"},
    {"norm", "bias", "residual", "rows"},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ports", PORTS, ids=lambda ports: "+".join(sorted(ports)) or "plain")
@pytest.mark.parametrize("kind", [None, *ACTIVATIONS])
def test_projection(rng: np.random.Generator, kind: str | None, ports: set[str], dtype: str) -> None:
    rows = [4, 1, 1]
    out_rows = len(rows) if "rows" in ports else 5
    inputs = {
        "x": random_array(rng, (5, 48), dtype),
        "weight": random_array(rng, (26, 48), "bf16", 0.2),
        "norm": random_array(rng, (48,), "f32"),
        "bias": random_array(rng, (26,), "bf16"),
        "rows": mx.array(rows),
        "residual": random_array(rng, (out_rows, 26 if kind is None else 13), dtype),
    }
    used = {port: array for port, array in inputs.items() if port in {"x", "weight"} | ports}
    attrs = {"dtype": dtype, "eps": 0.25 if "norm" in ports else None, "activation": kind}

    want = numbers(inputs["x"])
    if "rows" in ports:
        want = want[rows]
    if "norm" in ports:
        want = normalise(want, numbers(inputs["norm"]), 0.25)
    want = want @ numbers(inputs["weight"]).T
    if "bias" in ports:
        want = want + numbers(inputs["bias"])
    if kind is not None:
        want = ACTIVATIONS[kind](want[:, :13]) * want[:, 13:]
    if "residual" in ports:
        want = want + numbers(inputs["residual"])

    out = evaluate("projection", used, attrs)["out"]
    check(out, want, dtype)
    fast = evaluate_projection(used, attrs)
    assert fast.dtype == MLX_DTYPES[dtype]
    error = np.linalg.norm(floats(fast) - want) / np.linalg.norm(want)
    assert error < {"f32": 1e-6, "f16": 3e-3, "bf16": 2e-2}[dtype]


def test_evaluate_projection_takes_linear_ops(rng: np.random.Generator) -> None:
    x, weight = random_array(rng, (5, 48), "f32"), random_array(rng, (24, 48), "f32")
    out = evaluate_projection({"x": x, "weight": weight}, {"dtype": "f32"})
    check(out, numbers(x) @ numbers(weight).T, "f32")


def test_evaluate_projection_keeps_fp32_where_a_type_differs(rng: np.random.Generator) -> None:
    attrs = {"dtype": "f32"}
    for x_dtype, weight_dtype in (("bf16", "bf16"), ("f32", "bf16"), ("f16", "f32")):
        x, weight = random_array(rng, (5, 48), x_dtype), random_array(rng, (24, 48), weight_dtype)
        check(evaluate_projection({"x": x, "weight": weight}, attrs), numbers(x) @ numbers(weight).T, "f32")
