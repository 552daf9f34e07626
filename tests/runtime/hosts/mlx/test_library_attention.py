"""Attention as hosts give it to MLX: its numbers, how its result lies in memory, and how many MLX ops it takes."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlxr.compiler.artifact import AttentionCall
from mlxr.runtime.hosts.mlx.library import attention
from mlxr_tests.specs import floats, random_array
from mlxr_tests.tolerances import check_op

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 40
CALL = AttentionCall(function="attention", label="mlx.rope_attention", ports=(), scale=0.3)
Numbers = npt.NDArray[np.float64]
_MLX = mx.fast.scaled_dot_product_attention


def taken(tokens: int, context: int, sinks: bool = False) -> dict[str, mx.array]:
    rng = np.random.default_rng(0)
    shapes = {"queries": (1, tokens, HEADS, HEAD_DIM), "keys": (1, KV_HEADS, context, HEAD_DIM)}
    shapes["values"] = shapes["keys"]
    return {name: random_array(rng, shape, "f32") for name, shape in shapes.items()} | (
        {"sinks": random_array(rng, (HEADS,), "f32")} if sinks else {}
    )


def attended(inputs: dict[str, mx.array]) -> Numbers:
    """One token, one head, one key at a time."""
    q, k, v = (floats(inputs[name])[0].astype(np.float64) for name in ("queries", "keys", "values"))
    tokens, context = len(q), k.shape[1]
    out = np.zeros((tokens, HEADS * HEAD_DIM))
    for t, head in np.ndindex(tokens, HEADS):
        seen = context - tokens + t + 1
        scores = CALL.scale * k[head // (HEADS // KV_HEADS), :seen] @ q[t, head]
        sink = floats(inputs["sinks"])[head] if "sinks" in inputs else -np.inf
        weights = np.exp(scores - max(scores.max(), sink))
        sums = weights.sum() + np.exp(sink - max(scores.max(), sink))
        out[t, head * HEAD_DIM :][:HEAD_DIM] = weights / sums @ v[head // (HEADS // KV_HEADS), :seen]
    return out


def token_by_token(q: mx.array, *args: Any, **options: Any) -> mx.array:
    """MLX's attention with a result that lies as it does on NVIDIA GPUs, and on Apple's for more than 8 tokens."""
    return mx.contiguous(_MLX(q, *args, **options).transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def head_by_head(q: mx.array, *args: Any, **options: Any) -> mx.array:
    """The same as it lies on Apple's GPUs for few tokens."""
    return mx.contiguous(_MLX(q, *args, **options))


LAYOUTS = [token_by_token, head_by_head]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("tokens", "context"), [(9, 9), (5, 13), (2, 3)])
def test_numbers_and_layout(
    monkeypatch: pytest.MonkeyPatch, layout: Callable[..., mx.array], sinks: bool, tokens: int, context: int
) -> None:
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", layout)
    inputs = taken(tokens, context, sinks)
    out = attention(CALL, inputs)
    mx.eval(out)
    assert out.shape == (tokens, HEADS * HEAD_DIM)
    assert memoryview(out).c_contiguous, "kernels take it as it lies"
    check_op("out", floats(out), attended(inputs), "f32")


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_of_one_head_or_token(
    monkeypatch: pytest.MonkeyPatch, layout: Callable[..., mx.array], tokens: int, heads: int
) -> None:
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", layout)
    inputs = {"queries": mx.zeros((1, tokens, heads, 8)), **dict.fromkeys(("keys", "values"), mx.zeros((1, 1, 9, 8)))}
    out = attention(CALL, inputs)
    mx.eval(out)
    assert out.shape == (tokens, heads * 8) and memoryview(out).c_contiguous


def test_it_adds_three_views_to_mlxs_attention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each op is the CPU's time in every layer."""
    found: Counter[str] = Counter()

    def count(*arrays: mx.array) -> None:
        """Counts the ops that are still to be evaluated."""
        path = tmp_path / "graph.dot"
        mx.export_to_dot(str(path), *arrays)
        found.update(re.findall(r'label ="(\w+)"', path.read_text()))

    def counted(*args: mx.array, **options: Any) -> mx.array:
        count(*args)
        result = token_by_token(*args, **options)
        mx.eval(result)
        return result

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", counted)
    inputs = taken(9, 13)
    mx.eval(*inputs.values())
    count(attention(CALL, inputs))
    assert found == {"Transpose": 2, "Reshape": 1}
