"""Norms alone: of whole rows and of pieces, with residual and bias; of queries and keys in each scope."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import DType
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.targets.environment import float_literal
from mlxr.compiler.targets.metal.kernels.norm import NormKernel
from mlxr.compiler.targets.metal.kernels.qk_mean_squares import QkMeanSquaresKernel
from mlxr.compiler.targets.metal.kernels.qk_norm import QkNormKernel
from mlxr_tests.few import few_of
from mlxr_tests.kernel_bench import kernel_text, run_kernel
from mlxr_tests.reference_ops import evaluate
from mlxr_tests.specs import floats, random_array
from mlxr_tests.tolerances import Mismatch, check_op

pytestmark = pytest.mark.usefixtures("kernel_host")

TOKENS = 5
EPS = 1e-5


def norm_kernel(width, kind="rms", *, groups=1, shared=False, bias=None, residual=None, activation="f32", weight="f32"):
    return NormKernel(
        "norm",
        width=width,
        groups=groups,
        kind=kind,
        eps=EPS,
        shared=shared,
        weight=DType(weight),
        bias=DType(bias) if bias else None,
        residual=residual is not None,
        residual_scale=1.0 if residual is None else residual,
        activation=DType(activation),
    )


def qk_kernel(
    heads, kv_heads, head_dim, scope, kind="rms", *, bias=(None, None), activation="f32", weight="f32", part=False
):
    return QkNormKernel(
        "qk_norm",
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scope=scope,
        kind=kind,
        eps=EPS,
        q_norm=DType(weight),
        k_norm=DType("f32"),
        q_bias=DType(bias[0]) if bias[0] else None,
        k_bias=DType(bias[1]) if bias[1] else None,
        activation=DType(activation),
        mean_squares=part,
    )


def check_norm(kernel, *, seed=0, mean=0.0, sum_error=3e-6, text=None):
    rng, shape = np.random.default_rng(seed), (TOKENS, kernel.width)
    inputs = {port: random_array(rng, (kernel.parameters,), str(dtype)) for port, dtype in kernel.inputs}
    for port in ("x", "residual"):
        if port in inputs:
            inputs[port] = random_array(rng, shape, str(kernel.activation)) + mx.array(mean).astype(inputs[port].dtype)
            mx.eval(inputs[port])
    attrs = {"kind": kernel.kind, "eps": EPS, "groups": kernel.groups, "residual_scale": kernel.residual_scale}
    want = evaluate("norm", inputs, attrs)["out"]
    got = run_kernel(kernel, inputs, {"out": shape}, (kernel.groups, TOKENS, 1), seed=seed, text=text)["out"]
    check_op("norm", floats(got), floats(want), str(kernel.activation), sum_error=sum_error)


def check_qk_norm(kernel, *, seed=0, text=None):
    rng, shape = np.random.default_rng(seed), (TOKENS, kernel.width)
    inputs = {"qkv": random_array(rng, shape, str(kernel.activation))}
    for port, dtype in kernel.inputs[1:]:
        count = 1 if kernel.scope == "head" else kernel.num_heads if port.startswith("q") else kernel.num_kv_heads
        inputs[port] = random_array(rng, (count * kernel.head_dim,), str(dtype))
    if kernel.mean_squares:
        inputs["mean_squares"] = random_array(rng, (TOKENS, 2), "f32") ** 2
        mx.eval(inputs["mean_squares"])
    names = ("num_heads", "num_kv_heads", "head_dim", "scope", "kind", "eps", "rotary_dim", "rope_layout", "rope_scale")
    names += ("norms_values", "values_from_keys", "v_dim")
    attrs = {name: getattr(kernel, name) for name in names}
    want = evaluate("qk_norm", inputs, attrs)["out"]
    grid = (-(-kernel.pieces // kernel.pieces_per_threadgroup), TOKENS, 1)
    got = run_kernel(kernel, inputs, {"out": shape}, grid, seed=seed, text=text)["out"]
    check_op("qk_norm", floats(got), floats(want), str(kernel.activation))
    values = kernel.value_elements
    assert (np.array(floats(got))[:, -values:] == np.array(floats(inputs["qkv"]))[:, -values:]).all()


@pytest.mark.parametrize(("width", "kind"), few_of([8, 48, 512, 520, 2048, 5120, 16384, 20000], ["rms", "layer"]))
def test_widths(width, kind):
    """A part of a simdgroup, lanes without an element, and more elements than a threadgroup has registers for."""
    check_norm(norm_kernel(width, kind, residual=1.0, bias="f32" if kind == "layer" else None))


@pytest.mark.parametrize(
    ("activation", "weight", "kind"), few_of(["f32", "f16", "bf16"], ["f32", "f16", "bf16"], ["rms", "layer"])
)
def test_types(activation, weight, kind):
    check_norm(norm_kernel(88, kind, activation=activation, weight=weight))
    check_norm(norm_kernel(88, kind, activation=activation, weight=weight, bias=weight, residual=0.22))


GROUPS = [(120, 3), (1280, 2), (48, 12), (2112, 1)]


@pytest.mark.parametrize(("shape", "shared", "kind"), few_of(GROUPS, [False, True], ["rms", "layer"]), ids=str)
def test_groups(shape, shared, kind):
    width, groups = shape
    check_norm(norm_kernel(width, kind, groups=groups, shared=shared and groups > 1, bias="f32", residual=1.5))


def test_a_large_mean_leaves_its_deviations():
    """The variance comes from the deviations; as a difference of squares it would be lost."""
    check_norm(norm_kernel(520, "layer"), mean=100.0, sum_error=1e-4)


HEADS = [(4, 4, 32), (6, 2, 40), (8, 1, 128), (3, 3, 256), (16, 2, 80), (40, 8, 64)]


@pytest.mark.parametrize(("heads", "scope", "kind"), few_of(HEADS, ["head", "heads", "all"], ["rms", "layer"]), ids=str)
def test_queries_and_keys(heads, scope, kind):
    heads, kv_heads, head_dim = heads
    check_qk_norm(qk_kernel(heads, kv_heads, head_dim, scope, kind))
    check_qk_norm(qk_kernel(heads, kv_heads, head_dim, scope, kind, bias=("f32", "f32")))


@pytest.mark.parametrize("heads", HEADS[1:3], ids=str)
def test_part_of_the_heads(heads):
    """The mean squares of a rank's heads, and the norm by those of all ranks."""
    heads, kv_heads, head_dim = heads
    check_qk_norm(qk_kernel(heads, kv_heads, head_dim, "all", part=True, activation="bf16"))
    for counts_keys in (True, False):
        widths = {"q_width": 3 * heads * head_dim, "k_width": 5 * kv_heads * head_dim, "counts_keys": counts_keys}
        attrs = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, **widths}
        kernel = QkMeanSquaresKernel("qk_mean_squares", **attrs, activation=DType("bf16"))
        inputs = {"qkv": random_array(np.random.default_rng(0), (TOKENS, kernel.width), "bf16")}
        got = run_kernel(kernel, inputs, {"out": (TOKENS, 2)}, (2, TOKENS, 1))["out"]
        q, k, _ = np.split(floats(inputs["qkv"]).astype(np.float64), np.cumsum([heads, kv_heads]) * head_dim, axis=1)
        want = np.stack([(q**2).sum(1) / widths["q_width"], counts_keys * (k**2).sum(1) / widths["k_width"]], axis=1)
        np.testing.assert_allclose(floats(got), want, rtol=3e-6)
        np.testing.assert_allclose(floats(evaluate("qk_mean_squares", inputs, attrs)["out"]), want, rtol=3e-6)


TYPES = [("f16", "bf16"), ("bf16", "f16"), ("bf16", "f32")]


@pytest.mark.parametrize(("types", "scope"), few_of(TYPES, ["head", "heads", "all"]), ids=str)
def test_types_of_queries_and_keys(types, scope):
    activation, weight = types
    for bias in ((None, None), ("f16", None), (None, "bf16")):
        check_qk_norm(qk_kernel(6, 2, 40, scope, "layer", bias=bias, activation=activation, weight=weight))


NORM, QK = norm_kernel(520, "layer", groups=2, shared=True, bias="f32", residual=0.5), qk_kernel(6, 2, 40, "heads")
WHOLE = qk_kernel(40, 8, 64, "all", "layer")
MISTAKES = [
    (check_norm, NORM, "v[i] - mean : float4(0.0f)", "v[i] - mean : float4(mean)"),
    (check_norm, NORM, " * 0.5f", ""),
    (check_norm, NORM, "threadgroup_position_in_grid.x * 260u", "0u"),
    (check_norm, NORM, "y += b;", ""),
    (check_norm, NORM, f"+ {float_literal(EPS)}", "+ 0.01f"),
    (check_norm, norm_kernel(2048), "sums_of_squares[s]", "sums_of_squares[0]"),
    (check_norm, norm_kernel(2048), "threadgroup_barrier(mem_flags::mem_threadgroup);", ""),
    (check_qk_norm, QK, "first - 240u + at", "at"),
    (check_qk_norm, QK, "head < 6u", "head < 5u"),
    (check_qk_norm, QK, "head >= 8u", "head >= 7u"),
    (check_qk_norm, qk_kernel(6, 2, 40, "all", part=True), "threadgroup_position_in_grid.x];", "0];"),
    (check_qk_norm, WHOLE, "is_query ? 2560u : 512u", "2560u"),
    (check_qk_norm, WHOLE, "threadgroup_barrier(mem_flags::mem_threadgroup);", ""),
]


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(("check", "kernel", "old", "new"), MISTAKES)
def test_mistake_is_noticed(check, kernel, old, new):
    _, text = kernel_text(kernel)
    assert old in text, "the mistake must be possible"
    check(kernel)
    with pytest.raises((Mismatch, KernelFault)):
        check(kernel, text=text.replace(old, new))
