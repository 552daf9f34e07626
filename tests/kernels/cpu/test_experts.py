"""Mixtures of experts against NumPy: few and many tokens, experts with none and with most of them, every format."""

import numpy as np
import pytest

from mlxr.compiler.formats.weight_format import WeightFormat as F
from mlxr.compiler.targets.cpu.kernel_parts.matrix_kernel import OutputSegment
from mlxr.compiler.targets.cpu.kernels.experts import CpuExperts
from mlxr_tests.c_harness import check_cross_compiles, compilers, marches
from mlxr_tests.cpu_kernels import HEADERS, CpuKernels, kernels_code
from mlxr_tests.cpu_numbers import activation, gated, normed
from mlxr_tests.epilogues import epilogue_from
from mlxr_tests.few import few
from mlxr_tests.native_floats import float_rows
from mlxr_tests.packed import dequantised, random_blocks

EPS = 1e-5
MOST = 70


def experts(label, columns, formats, rows, compute, num_experts, top_k, **fields):
    segments = tuple(OutputSegment(format, rows) for format in formats)
    eps = EPS if "norm" in fields else None
    combine = fields.get("combine", False)
    fields = {"gated": len(formats) == 2, "inputs_of_pairs": combine, "weighs": combine} | fields
    epilogue, fields = epilogue_from(fields)
    return CpuExperts(
        label, columns, segments, compute, MOST, epilogue, eps=eps, num_experts=num_experts, top_k=top_k, **fields
    )


GATED = {"activation": "silu", "norm": "rms"}
CASES = [
    experts("f32", 72, (F.F32, F.F32), 24, "exact", 5, 2, **GATED),
    experts("bf16", 96, (F.BF16, F.BF16), 40, "fast", 4, 2, **GATED),
    experts("mixed_floats", 136, (F.F16, F.F32), 29, "fast", 4, 3, bias=True, **GATED),
    experts("q4_0", 256, (F.Q4_0, F.Q4_0), 48, "fast", 8, 2, **GATED),
    experts("q8_0_exact", 256, (F.Q8_0, F.Q8_0), 32, "exact", 6, 2, **GATED),
    experts("mixed", 512, (F.Q4_K, F.BF16), 48, "fast", 4, 4, norm="layer", norm_bias=True, activation="gelu"),
    experts("oai", 64, (F.F32, F.F32), 40, "fast", 4, 2, bias=True, activation="swiglu_oai", limit=2.0),
    experts("ungated", 64, (F.F16,), 61, "fast", 4, 2, activation="relu2"),
    experts("weighed", 72, (F.F32, F.F32), 24, "exact", 5, 2, bias=True, weighs=True, **GATED),
    experts("weighed_q4_0", 256, (F.Q4_0, F.Q4_0), 48, "fast", 8, 2, weighs=True, **GATED),
    experts("added", 72, (F.F32,), 61, "exact", 5, 2, combine=True, weighs=False, bias=True, residual=True),
    experts("one", 64, (F.F32,), 61, "exact", 3, 1, inputs_of_pairs=True),
    experts("sum_f32", 72, (F.F32,), 61, "exact", 5, 2, combine=True, bias=True, residual=True, residual_scale=0.5),
    experts("sum_bf16", 96, (F.BF16,), 77, "fast", 4, 2, combine=True, residual=True),
    experts("sum_q4_0", 256, (F.Q4_0,), 96, "fast", 8, 3, combine=True, residual=True),
    experts("sum_q6_k", 256, (F.Q6_K,), 48, "exact", 4, 2, combine=True),
    experts("sum_one", 2080, (F.F16,), 72, "fast", 3, 1, combine=True, residual=True),
    experts("sum_many", 32, (F.Q8_0,), 32, "fast", 64, 6, combine=True, residual=True),
]
ROWS = (1, 2, 5, 9, 33, MOST)
BUILDS = [*((march, compilers()[0]) for march in marches()), *(("native", other) for other in compilers()[1:])]


CHOSEN = [("native", compilers()[0])]


@pytest.fixture(scope="module", params=few(BUILDS, CHOSEN, whole=True), ids=lambda build: f"{build[0]}-{build[1][-1]}")
def kernels(request):
    with CpuKernels(CASES, (2, 1, 3, 5)[BUILDS.index(request.param) % 4], *request.param) as built:
        yield built


def matrix(format, rows, columns, seed):
    if not format.is_quantised:
        return float_rows(format, rows, columns, seed)
    native = random_blocks(format, rows, columns, seed)
    return native, dequantised(format, native)


def choices(rng, kernel, tokens, kind):
    """Distinct experts of each token: any, or nearly always the same; some of other ranks (-1), or all."""
    of_one = [rng.permutation(kernel.num_experts)[: kernel.top_k] for _ in range(tokens)]
    if kind == "same":
        of_one[: tokens - 1] = [np.arange(kernel.num_experts)[-kernel.top_k :]] * (tokens - 1)
    chosen = np.array(of_one, np.int32)
    if kind == "elsewhere":
        chosen[rng.random(chosen.shape) < 0.6] = -1
    return np.full_like(chosen, -1) if kind == "all elsewhere" else chosen


def expected(kernel, given, weights):
    """Results of each (token, choice) and their scale; [experts, rows, columns] of each segment as weights."""
    chosen, k, n = given["experts"], kernel.in_features, kernel.out_features
    x = given["x"].astype(np.float64)
    x = normed(kernel.norm, x, given["norm"], given["norm_bias"] if kernel.norm_bias else None, EPS)
    x = x.reshape(len(chosen), -1, k) if kernel.inputs_of_pairs else np.repeat(x[:, None], kernel.top_k, axis=1)
    bias = given["bias"].reshape(len(weights), kernel.num_experts, n) * bool(kernel.epilogue.bias)
    if kernel.weighs and not kernel.combine:
        x = x * given["weights"][..., None]
    parts = [np.einsum("tpk,tpnk->tpn", x, w[chosen]) + b[chosen] for w, b in zip(weights, bias, strict=True)]
    norms = [np.linalg.norm(w, axis=2)[chosen] * np.linalg.norm(x, axis=2)[..., None] for w in weights]
    if kernel.epilogue.gated:
        y = gated(kernel.epilogue.activation, *parts, kernel.epilogue.limit)
        return y, sum(norms) * (1 + sum(np.abs(part) for part in parts))
    return activation(kernel.epilogue.activation, parts[0]), norms[0] * (1 + np.abs(parts[0]))


@pytest.mark.parametrize("kind", ["any", "same", "elsewhere", "all elsewhere"])
@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.label)
def test_experts(kernels, kernel, kind):
    rng = np.random.default_rng(3)
    k, n, count = kernel.in_features, kernel.out_features, kernel.num_experts
    stored = [matrix(s.format, count * n, k, seed) for seed, s in enumerate(kernel.segments)]
    weights = [dense.reshape(count, n, k).astype(np.float64) for _, dense in stored]
    packed = [kernels.pack(s.format, native) for s, (native, _) in zip(kernel.segments, stored, strict=True)]
    sizes = {"norm": k, "norm_bias": k, "bias": len(stored) * count * n}
    given = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    given |= {f"w{index}": array for index, array in enumerate(packed)}
    limit = 3e-6 if kernel.compute == "exact" else 1e-2
    for tokens in ROWS:
        given["experts"] = choices(rng, kernel, tokens, kind)
        shape = (tokens, kernel.top_k if kernel.inputs_of_pairs else 1, k)
        given["x"] = rng.normal(size=shape).astype(np.float32).reshape(tokens, -1)
        given["weights"] = rng.uniform(0.1, 1, size=(tokens, kernel.top_k)).astype(np.float32)
        given["residual"] = rng.normal(size=(tokens, n)).astype(np.float32)
        width = n if kernel.combine else kernel.top_k * n
        given["out"] = np.full((tokens + 1, width), 7, np.float32)
        given["out"][:tokens] = np.nan
        own = given["experts"] >= 0
        if kernel.inputs_of_pairs:  # nobody writes the others, nor reads them
            given["x"].reshape(shape)[~own] = np.nan
        kernels.run(kernel, [given[param.name] for param in kernel.params], tokens)
        want, scale = expected(kernel, given, weights)
        want[~own] = scale[~own] = 0
        if kernel.combine:
            by = given["weights"] if kernel.weighs else np.ones_like(given["weights"])
            want, scale = (np.einsum("tpn,tp->tn", a, by) for a in (want, scale))
            want = want * kernel.epilogue.residual_scale + given["residual"] * kernel.epilogue.residual
        got = given["out"][:tokens].reshape(want.shape)
        if not kernel.combine:
            assert np.isnan(got[~own]).all(), "results of other ranks' experts are not written"
            got[~own] = 0
        worst = np.max(np.abs(got - want) / (scale + 1e-3))
        assert worst < limit, f"{tokens} tokens: off by {worst:.1e}"
        assert np.all(given["out"][tokens] == 7)


def test_the_sum_may_take_the_residuals_place(kernels):
    kernel = next(case for case in CASES if case.label == "sum_f32")
    rng = np.random.default_rng(4)
    sizes = {"x": (9, 144), "w0": (5 * 61, 72), "bias": (5 * 61,), "weights": (9, 2), "residual": (9, 61)}
    given = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    given["experts"] = choices(rng, kernel, 9, "any")
    apart = given | {"out": np.full((9, 61), np.nan, np.float32)}
    within = given | {"residual": given["residual"].copy()}
    within["out"] = within["residual"]
    for arguments in (apart, within):
        kernels.run(kernel, [arguments[param.name] for param in kernel.params], 9)
    np.testing.assert_array_equal(apart["out"], within["out"])


def test_weights_of_experts_that_nobody_chose_are_not_read(kernels):
    """They are NaN."""
    kernel = next(case for case in CASES if case.label == "f32")
    rng = np.random.default_rng(5)
    for tokens in (1, 40):
        given = {name: rng.normal(size=(5, 24, 72)).astype(np.float32) for name in ("w0", "w1")}
        for name in ("w0", "w1"):
            given[name][[0, 2, 4]] = np.nan
        given |= {"x": rng.normal(size=(tokens, 72)).astype(np.float32), "norm": np.ones(72, np.float32)}
        given |= {
            "experts": np.tile(np.array([3, 1], np.int32), (tokens, 1)),
            "out": np.zeros((tokens, 48), np.float32),
        }
        kernels.run(kernel, [given[param.name] for param in kernel.params], tokens)
        assert np.isfinite(given["out"]).all()


def test_text_of_a_kernel():
    (kernel,) = (case for case in CASES if case.label == "sum_f32")
    text = kernels_code([kernel])
    assert "sum over a token's experts e of weight * (x @ W[e].T + bias) * 0.5 + residual" in text
    assert ".count = 5," in text and ".top_k = 2," in text and "w0       [5, 61, 72] f32" in text


@pytest.mark.long
@pytest.mark.parametrize("cpu", ["generic", "apple_m1"])
def test_compiles_for_arm(cpu):
    kernels = [case for case in CASES if not any(segment.format.is_quantised for segment in case.segments)]
    used = ", ".join(f"kernel_{index}" for index in range(len(kernels)))
    code = f"{kernels_code(kernels)}\nvoid *all_of_them[] = {{{used}}};\n"
    check_cross_compiles(HEADERS, code, "aarch64-linux-gnu", cpu)
