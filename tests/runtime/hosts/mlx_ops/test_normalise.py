"""Norms of rows and of heads against NumPy's float64, one piece at a time."""

from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr_tests.reference_ops import evaluate
from mlxr_tests.specs import floats, random_array
from mlxr_tests.tolerances import check_op

Numbers = npt.NDArray[np.float64]
KINDS = ("rms", "layer")
EPS = 0.125


def numbers(array: mx.array) -> Numbers:
    return floats(array).astype(np.float64)


def normed(piece: Numbers, weight: Numbers, bias: Numbers | None, kind: str) -> Numbers:
    """The norm of one vector, from its textbook definition."""
    mean = piece.sum() / len(piece) if kind == "layer" else 0.0
    deviation = np.sqrt(((piece - mean) ** 2).sum() / len(piece) + EPS)
    return np.asarray((piece - mean) / deviation * weight + (0 if bias is None else bias))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(("kind", "dtype", "bias"), [*product(KINDS, ["f32", "f16", "bf16"], [False, True])])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("own_weights", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_norm(
    rng: np.random.Generator, kind: str, dtype: str, bias: bool, groups: int, own_weights: bool, residual: bool
) -> None:
    width = 48 if own_weights else 48 // groups
    inputs = {"x": random_array(rng, (5, 48), dtype), "weight": random_array(rng, (width,), "f32")}
    if bias:
        inputs["bias"] = random_array(rng, (width,), "f32")
    if residual:
        inputs["residual"] = random_array(rng, (5, 48), dtype)
    out = evaluate("norm", inputs, {"kind": kind, "eps": EPS, "groups": groups, "residual_scale": 0.5})["out"]

    repeat = 1 if own_weights else groups
    weight, biases = (
        np.tile(numbers(inputs["weight"]), repeat),
        np.tile(numbers(inputs.get("bias", mx.zeros(width))), repeat),
    )
    size = 48 // groups
    want = np.zeros((5, 48))
    for token, group in product(range(5), range(groups)):
        own = slice(group * size, (group + 1) * size)
        want[token, own] = normed(numbers(inputs["x"])[token, own], weight[own], biases[own], kind)
    if residual:
        want = numbers(inputs["residual"]) + 0.5 * want
    assert out.dtype == MLX_DTYPES[dtype]
    check_op("norm", floats(out), want, dtype)


def test_squares_in_fp32(rng: np.random.Generator) -> None:
    x = random_array(rng, (2, 48), "f16", 3000.0)
    attrs: dict[str, Any] = {"kind": "rms", "eps": 1e-5, "groups": 1, "residual_scale": 1.0}
    out = evaluate("norm", {"x": x, "weight": mx.ones(48)}, attrs)["out"]
    want = numbers(x) / np.sqrt((numbers(x) ** 2).mean(-1, keepdims=True) + 1e-5)
    check_op("norm", floats(out), want, "f16")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scope", ["head", "heads", "all"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_qk_norm(rng: np.random.Generator, kind: str, scope: str, bias: bool, dtype: str) -> None:
    heads = {"q": 3, "k": 2}
    inputs = {"qkv": random_array(rng, (5, 7 * 8), dtype)}
    for role, count in heads.items():
        width = 8 if scope == "head" else 8 * count
        inputs[f"{role}_norm"] = random_array(rng, (width,), "f32")
        if bias:
            inputs[f"{role}_norm_bias"] = random_array(rng, (width,), "f32")
    attrs = {"num_heads": 3, "num_kv_heads": 2, "head_dim": 8, "scope": scope, "kind": kind, "eps": EPS}
    attrs |= {
        "rotary_dim": 0,
        "rope_layout": "half",
        "rope_scale": 1.0,
        "norms_values": False,
        "values_from_keys": False,
        "v_dim": None,
    }
    out = evaluate("qk_norm", inputs, attrs)["out"]

    want = numbers(inputs["qkv"])
    start = 0
    for role, count in heads.items():
        pieces = 1 if scope == "all" else count
        size = 8 * count // pieces
        for token, piece in product(range(5), range(pieces)):
            of_weight = slice(None) if scope != "heads" else slice(piece * size, (piece + 1) * size)
            weight = numbers(inputs[f"{role}_norm"])[of_weight]
            own_bias = numbers(inputs[f"{role}_norm_bias"])[of_weight] if bias else None
            own = slice(start + piece * size, start + (piece + 1) * size)
            want[token, own] = normed(numbers(inputs["qkv"])[token, own], weight, own_bias, kind)
        start += 8 * count
    assert out.dtype == MLX_DTYPES[dtype]
    check_op("qk_norm", floats(out), want, dtype)
    np.testing.assert_array_equal(floats(out)[:, 40:], floats(inputs["qkv"])[:, 40:])


def test_norms_of_parts_are_parts_of_the_norm(rng: np.random.Generator) -> None:
    """Two ranks, each with some queries and a copy of the only keys, which one of them counts."""
    q, k = (random_array(rng, (5, width), "f32") for width in (24, 8))
    weights = {"q": random_array(rng, (24,), "f32"), "k": random_array(rng, (8,), "f32")}
    columns = (slice(0, 16), slice(16, 24))
    widths = {"q_width": 24, "k_width": 8}
    means = [
        evaluate("mean_squares", {"q": q[:, own], "k": k}, widths | {"counts_keys": rank == 0})["out"]
        for rank, own in enumerate(columns)
    ]
    for number, (x, own) in enumerate(((q, columns[0]), (k, slice(0, 8)))):
        weight = weights["qk"[number]]
        inputs = {"x": x[:, own], "weight": weight[own], "mean_squares": means[0] + means[1]}
        got = floats(evaluate("norm_of_part", inputs, {"column": number, "eps": EPS})["out"])
        want = [normed(row, numbers(weight), None, "rms")[own] for row in numbers(x)]
        check_op("norm", got, np.array(want), "f32")
