"""Dense ops against the same mathematics in NumPy's float64, in every element type."""

import math
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlxr.compiler.artifact import DType, MatmulCall
from mlxr.compiler.ir.op_registry import read_op_kind
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.mlx.library import matmul
from mlxr_tests.reference_ops import PLAIN_PROJECTION, evaluate
from mlxr_tests.specs import floats, random_array
from mlxr_tests.tolerances import check_op

DTYPES = ["f32", "f16", "bf16"]
Numbers = npt.NDArray[np.float64]


def numbers(array: mx.array) -> Numbers:
    return floats(array).astype(np.float64)


def normalise(x: Numbers, weight: Numbers, eps: float, bias: Numbers | None = None) -> Numbers:
    """An RMS norm, or with a bias a layer norm."""
    if bias is None:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight)
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias)


ACTIVATIONS: dict[str, Any] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5)),
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "relu": lambda x: np.where(x > 0, x, 0),
    "relu2": lambda x: np.where(x > 0, x, 0) ** 2,
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
    attrs = {"dtype": dtype, "scale": 1.0, "first_row": None}
    out = evaluate("embed", {"ids": mx.array([3, 0, 10, 3]), "table": table}, attrs)["out"]
    check(out, numbers(table)[[3, 0, 10, 3]], dtype)


@pytest.mark.parametrize("scale", [1.0, 6.75])
def test_embedding_scale(rng: np.random.Generator, scale: float) -> None:
    table = random_array(rng, (11, 6), "bf16")
    attrs = {"dtype": "f32", "scale": scale, "first_row": None}
    out = evaluate("embed", {"ids": mx.array([3, 10]), "table": table}, attrs)["out"]
    check(out, numbers(table)[[3, 10]] * scale, "f32")


def test_embedding_of_ranks_adds_up(rng: np.random.Generator) -> None:
    """A row that is infinite spoils no row of another id."""
    table, ids = random_array(rng, (11, 6), "f32"), mx.array([4, 0, 10, 3, 4])
    table[5] = mx.array(np.inf)
    total = np.zeros((5, 6))
    for first, end in ((0, 4), (4, 5), (5, 11)):
        attrs = {"dtype": "f32", "scale": 6.75, "first_row": first}
        total += numbers(evaluate("embed", {"ids": ids, "table": table[first:end]}, attrs)["out"])
    check(mx.array(total.astype(np.float32)), numbers(table)[[4, 0, 10, 3, 4]] * 6.75, "f32")


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
    check(evaluate("add", {"a": a, "b": b}, {"alpha": 1.0})["out"], numbers(a) + numbers(b), dtype)
    check(evaluate("add", {"a": a, "b": b}, {"alpha": 0.25})["out"], numbers(a) + 0.25 * numbers(b), dtype)
    check(evaluate("scale", {"x": a}, {"factor": 0.375})["out"], 0.375 * numbers(a), dtype)
    check(evaluate("soft_cap", {"x": a}, {"cap": 1.5})["out"], 1.5 * np.tanh(numbers(a) / 1.5), dtype)


@pytest.mark.parametrize("limit", [None, 0.5])
def test_swiglu_oai(rng: np.random.Generator, limit: float | None) -> None:
    a, b = random_array(rng, (5, 48), "f32"), random_array(rng, (5, 48), "f32")
    check(evaluate("swiglu_oai", {"a": a, "b": b}, {"limit": limit})["out"], oai(numbers(a), numbers(b), limit), "f32")


def test_gate_rows(rng: np.random.Generator) -> None:
    x, gate = random_array(rng, (5, 48), "bf16"), random_array(rng, (5, 1), "f32")
    check(evaluate("gate_rows", {"x": x, "gate": gate}, {})["out"], numbers(x) / (1 + np.exp(-numbers(gate))), "bf16")


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


def oai(gate: Numbers, up: Numbers, limit: float | None) -> Numbers:
    limit = limit or np.inf
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return np.asarray((up + 1) * gate / (1 + np.exp(-1.702 * gate)))


PORTS: list[set[str]] = [
    set(),
    {"norm"},
    {"norm", "norm_bias"},
    {"bias"},
    {"residual"},
    {"rows"},
    {"gate"},
    {"norm", "bias", "residual", "rows"},
    {"norm", "norm_bias", "bias", "residual", "gate"},
]
ACTIVATED: list[dict[str, Any]] = [
    {},
    *({"activation": kind, "gated": gated} for kind in ACTIVATIONS for gated in (True, False)),
    {"activation": "swiglu_oai", "gated": True, "limit": 0.5},
]
AFTER: list[dict[str, Any]] = [{}, {"residual_scale": 0.25, "out_scale": 3.0, "out_cap": 1.25}]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ports", PORTS, ids=lambda ports: "+".join(sorted(ports)) or "plain")
@pytest.mark.parametrize("activated", ACTIVATED, ids=lambda attrs: "-".join(map(str, attrs.values())) or "none")
@pytest.mark.parametrize("after", AFTER, ids=["plain", "scaled"])
def test_projection(
    rng: np.random.Generator, after: dict[str, Any], activated: dict[str, Any], ports: set[str], dtype: str
) -> None:
    rows = [4, 1, 1]
    out_rows, gated = len(rows) if "rows" in ports else 5, activated.get("gated", False)
    inputs = {
        "x": random_array(rng, (5, 48), dtype),
        "weight": random_array(rng, (26, 48), "bf16", 0.2),
        "norm": random_array(rng, (48,), "f32"),
        "norm_bias": random_array(rng, (48,), "f32"),
        "bias": random_array(rng, (26,), "bf16"),
        "rows": mx.array(rows),
        "gate": random_array(rng, (out_rows, 1), "f32"),
        "residual": random_array(rng, (out_rows, 13 if gated else 26), dtype),
    }
    used = {port: array for port, array in inputs.items() if port in {"x", "weight"} | ports}
    norm = {"eps": 0.25, "norm_kind": "layer" if "norm_bias" in ports else "rms"} if "norm" in ports else {}
    attrs = {"dtype": dtype, **PLAIN_PROJECTION, **norm, **activated, **after}

    want = numbers(inputs["x"])
    if "rows" in ports:
        want = want[rows]
    if "norm" in ports:
        bias = numbers(inputs["norm_bias"]) if "norm_bias" in ports else None
        want = normalise(want, numbers(inputs["norm"]), 0.25, bias)
    want = want @ numbers(inputs["weight"]).T
    if "bias" in ports:
        want = want + numbers(inputs["bias"])
    if (kind := activated.get("activation")) == "swiglu_oai":
        want = oai(want[:, :13], want[:, 13:], activated["limit"])
    elif kind is not None:
        want = ACTIVATIONS[kind](want[:, :13]) * want[:, 13:] if gated else ACTIVATIONS[kind](want)
    if after:
        want = 1.25 * np.tanh(want * 3 / 1.25)
    if "gate" in ports:
        want = want / (1 + np.exp(-numbers(inputs["gate"])))
    if "residual" in ports:
        want = numbers(inputs["residual"]) + want * after.get("residual_scale", 1)

    out = evaluate("projection", used, attrs)["out"]
    check(out, want, dtype)
    one_type = {port: used[port].astype(MLX_DTYPES[dtype]) for port in ("weight", "norm", "norm_bias") if port in used}
    fast = matmul(call_of(attrs), used | one_type)
    assert fast.dtype == MLX_DTYPES[dtype]
    error = np.linalg.norm(floats(fast) - want) / np.linalg.norm(want)
    assert error < {"f32": 2e-6, "f16": 3e-3, "bf16": 2e-2}[dtype]


def test_projection_with_learned_numbers_or_a_limit(rng: np.random.Generator) -> None:
    plain = {"x": random_array(rng, (5, 48), "f32"), "weight": random_array(rng, (26, 48), "f32", 0.2)}
    y = numbers(plain["x"]) @ numbers(plain["weight"]).T
    p, n = (np.log1p(np.exp(number)) for number in (0.5, -1.5))
    xielu = np.where(y > 0, p * y * y, (0.5 + n) * (np.expm1(np.minimum(y, -1e-6)) - y)) + 0.5 * y
    alphas = {"alpha_p": mx.array([0.5]), "alpha_n": mx.array([-1.5])}
    for own, inputs, want in (
        ({"activation": "xielu"}, plain | alphas, xielu),
        ({"out_limit": 0.75}, plain, np.clip(y, -0.75, 0.75)),
    ):
        attrs = {"dtype": "f32", **PLAIN_PROJECTION, **own}
        check(evaluate("projection", inputs, attrs)["out"], want, "f32")
        fast = floats(matmul(call_of(attrs), inputs))
        assert np.linalg.norm(fast - want) < 2e-6 * np.linalg.norm(want)


def call_of(attrs: dict[str, Any]) -> MatmulCall:
    """The call of MLX's matmul for an op of these attributes."""
    projection = read_op_kind("projection", attrs)
    assert isinstance(projection, Projection)
    return MatmulCall(
        function="matmul",
        label="mlx.projection",
        ports=(),
        dtype=projection.dtype,
        norm=projection.norm,
        finish=projection.finish,
        columns=projection.columns,
    )


def test_projection_of_some_columns(rng: np.random.Generator) -> None:
    x, weight, norm = (random_array(rng, shape, "f32") for shape in ((5, 64), (24, 48), (48,)))
    attrs = {"dtype": "f32", **PLAIN_PROJECTION, "eps": 0.25, "norm_kind": "rms", "columns": 48}
    inputs = {"x": x, "weight": weight, "norm": norm}
    want = normalise(numbers(x)[:, :48], numbers(norm), 0.25, None) @ numbers(weight).T
    check(evaluate("projection", inputs, attrs)["out"], want, "f32")
    check(matmul(call_of(attrs), inputs), want, "f32")


def test_mlxs_matmul_takes_linear_ops(rng: np.random.Generator) -> None:
    x, weight = random_array(rng, (5, 48), "f32"), random_array(rng, (24, 48), "f32")
    out = matmul(
        MatmulCall(function="matmul", label="mlx.linear", ports=(), dtype=DType.F32), {"x": x, "weight": weight}
    )
    check(out, numbers(x) @ numbers(weight).T, "f32")
