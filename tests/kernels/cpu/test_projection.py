"""Projections and the embedding against NumPy: every path, format and epilogue, rows and columns left over, threads."""

from itertools import chain

import numpy as np
import pytest

from mlxr.compiler.formats.weight_format import WeightFormat as F
from mlxr.compiler.targets.cpu.kernel_parts.matrix_kernel import OutputSegment
from mlxr.compiler.targets.cpu.kernels.embed import CpuEmbed
from mlxr.compiler.targets.cpu.kernels.projection import CpuProjection
from mlxr_tests.c_harness import aligned, compilers, marches
from mlxr_tests.cpu_kernels import CpuKernels, kernels_code
from mlxr_tests.cpu_numbers import activation, gated, normed, sigmoid
from mlxr_tests.epilogues import epilogue_from
from mlxr_tests.few import few
from mlxr_tests.native_floats import float_rows
from mlxr_tests.packed import FORMATS, dequantised, random_blocks

EPS = 1e-5
MOST = 70


def projection(label, columns, formats, rows, compute, **fused):
    segments = tuple(OutputSegment(format, n) for format, n in zip(formats, rows, strict=True))
    eps = EPS if "norm" in fused else None
    gated = "activation" in fused
    epilogue, fields = epilogue_from({"gated": gated} | fused)
    return CpuProjection(label, columns, segments, compute, MOST, epilogue, eps=eps, **fields)


CASES = [
    projection("bf16", 48, (F.BF16,), (61,), "fast", norm="rms"),
    projection("f16", 56, (F.F16,), (61,), "fast", bias=True, residual=True, gather=True),
    projection("f32", 1096, (F.F32,), (77,), "fast", residual=True),
    projection("blocks", 2200, (F.F16, F.BF16), (61, 16), "fast", norm="rms", bias=True),
    projection("mixed_floats", 136, (F.F16, F.BF16, F.F32), (61, 16, 30), "fast"),
    projection("bf16_silu", 2080, (F.BF16, F.BF16), (29, 29), "fast", norm="rms", bias=True, activation="silu"),
    projection("exact_gelu", 1096, (F.BF16, F.F32), (77, 77), "exact", residual=True, activation="gelu"),
    projection(
        "q4_0_q8_0_q6_k", 256, (F.Q4_0, F.Q8_0, F.Q6_K), (61, 32, 13), "fast", norm="rms", bias=True, gather=True
    ),
    projection("k_gelu", 2304, (F.Q4_K, F.Q6_K), (61, 61), "fast", norm="rms", activation="gelu_tanh"),
    projection("q5_k_f16", 512, (F.Q5_K, F.F16), (61, 48), "fast", norm="rms", residual=True),
    projection("exact_q5_k_q4_0", 1280, (F.Q5_K, F.Q4_0), (61, 48), "exact", norm="rms", residual=True),
    projection("exact_q8_0_silu", 512, (F.Q8_0, F.BF16), (50, 50), "exact", norm="rms", activation="silu"),
    projection("layer", 1096, (F.F32,), (61,), "fast", norm="layer", bias=True, residual=True, residual_scale=0.25),
    projection("layer_bias", 56, (F.BF16, F.F32), (29, 13), "exact", norm="layer", norm_bias=True, gate=True),
    projection("relu2", 72, (F.F32,), (61,), "exact", activation="relu2", gated=False, bias=True),
    projection("ungated_gelu", 256, (F.Q8_0, F.Q4_0), (29, 29), "fast", activation="gelu", gated=False),
    projection("gated_relu", 72, (F.F16, F.F16), (29, 29), "exact", activation="relu"),
    projection("oai", 256, (F.F32, F.Q8_0), (61, 61), "exact", activation="swiglu_oai", limit=1.5, bias=True),
    projection("oai_unbound", 256, (F.Q8_0, F.Q8_0), (61, 61), "fast", activation="swiglu_oai"),
    projection("cap", 64, (F.F32,), (77,), "exact", gather=True, out_scale=0.125, out_cap=1.5),
    projection("limit", 72, (F.BF16,), (61,), "exact", norm="layer", norm_weight=False, bias=True, out_limit=0.75),
    projection("xielu", 264, (F.F32,), (61,), "exact", activation="xielu", gated=False, alpha_p=True, alpha_n=True),
    projection("gate", 512, (F.Q4_0,), (61,), "fast", gate=True, residual=True, residual_scale=3.0),
]
EMBEDS = [
    *(CpuEmbed("embed", 37, 72, format, "rows") for format in (F.F32, F.F16, F.BF16)),
    *(CpuEmbed("embed", 37, 768, format, "packed") for format in FORMATS),
    CpuEmbed("scaled", 37, 72, F.F32, "rows", scale=8.5),
    CpuEmbed("scaled", 37, 512, F.Q8_0, "packed", scale=22.5),
]
RANKS = [(F.BF16, 72, "rows", 8.5), (F.Q4_0, 512, "packed", 1.0)]
EMBEDS_OF_RANKS = [
    [CpuEmbed("rank", rows, columns, format, layout, scale, first) for rows, first in ((19, 0), (17, 19), (1, 36))]
    for format, columns, layout, scale in RANKS
]
# Of one row to more than any path's most, at both sides of where paths change.
ROWS = (1, 2, 3, 5, 8, 9, 14, 15, 17, 33, 48, 49, 64, 65, MOST)
# Every instruction set, and every compiler for this machine's own.
BUILDS = [*((march, compilers()[0]) for march in marches()), *(("native", other) for other in compilers()[1:])]


CHOSEN = [("native", compilers()[0])]


@pytest.fixture(scope="module", params=few(BUILDS, CHOSEN, whole=True), ids=lambda build: f"{build[0]}-{build[1][-1]}")
def kernels(request):
    # Threads in excess of the CPUs too, in some builds; two in the short one, so that one of them has several units.
    threads = 1 + (BUILDS.index(request.param) - BUILDS.index(CHOSEN[0]) + 1) % 3
    with CpuKernels([*CASES, *EMBEDS, *chain(*EMBEDS_OF_RANKS)], threads, *request.param) as built:
        yield built


def matrix(format, rows, columns, seed):
    """Native bytes [rows, row bytes], and the numbers; weights are about as great as 1 / sqrt(columns)."""
    if not format.is_quantised:
        return float_rows(format, rows, columns, seed)
    native = random_blocks(format, rows, columns, seed)
    return native, dequantised(format, native)


def expected(kernel, x, weights, given):
    """The result in double precision, and what its error is relative to."""
    weight = given["norm"] if kernel.norm_weight else 1.0
    x = normed(kernel.norm, x.astype(np.float64), weight, given["norm_bias"] if kernel.norm_bias else None, EPS)
    y = x @ weights.T + (given["bias"] if kernel.epilogue.bias else 0)
    scale = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights, axis=1)
    if kernel.epilogue.gated:
        n = kernel.out_features
        scale = scale[:, :n] * (1 + np.abs(y[:, n:])) + scale[:, n:] * (1 + np.abs(y[:, :n]))
        y = gated(kernel.epilogue.activation, y[:, :n], y[:, n:], kernel.epilogue.limit)
    else:
        scale = scale * (1 + np.abs(y)) if kernel.epilogue.activation in ("relu2", "xielu") else scale
        numbers = (given["alpha_p"][0], given["alpha_n"][0]) if kernel.epilogue.alpha_p else ()
        y = activation(kernel.epilogue.activation, y, *numbers)
    y, scale = y * kernel.epilogue.out_scale, scale * max(kernel.epilogue.out_scale, 0.1)
    if kernel.epilogue.out_cap:
        y = kernel.epilogue.out_cap * np.tanh(y / kernel.epilogue.out_cap)
    if kernel.epilogue.out_limit:
        y = np.clip(y, -kernel.epilogue.out_limit, kernel.epilogue.out_limit)
    if kernel.epilogue.gate:
        y = y * sigmoid(given["gate"])
    return y * kernel.epilogue.residual_scale + (given["residual"] if kernel.epilogue.residual else 0), scale + 1e-3


@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.label)
def test_projection(kernels, kernel):
    rng = np.random.default_rng(1)
    columns, outputs = kernel.in_features, kernel.out_features
    stored = [matrix(segment.format, segment.rows, columns, seed) for seed, segment in enumerate(kernel.segments)]
    matrices = [kernels.pack(s.format, native) for s, (native, _) in zip(kernel.segments, stored, strict=True)]
    weights = np.concatenate([dense for _, dense in stored]).astype(np.float64)
    given = {
        name: rng.normal(size=n).astype(np.float32)
        for name, n in (
            ("norm", columns),
            ("norm_bias", columns),
            ("bias", len(weights)),
            ("alpha_p", 1),
            ("alpha_n", 1),
        )
    }
    given |= {f"w{index}": array for index, array in enumerate(matrices)}
    f32_only = all(segment.format is F.F32 for segment in kernel.segments)
    limit = 1e-2 if kernel.compute == "fast" and not f32_only else 3e-6
    for count in ROWS:
        tokens = count + 3 if kernel.gather else count
        given["x"] = rng.normal(size=(tokens, columns)).astype(np.float32) + np.float32(0.5)
        rows = rng.integers(0, tokens, count).astype(np.int32)
        residual = rng.normal(size=(count, outputs)).astype(np.float32)
        given["gate"] = rng.normal(size=(count, 1)).astype(np.float32)
        # As in a model: the result takes the residual's place, here with a guard behind it.
        out = np.full((count + 1, outputs), 7, np.float32)
        out[:count] = residual if kernel.epilogue.residual else np.nan
        arguments = [given.get(param.name, out) for param in kernel.params]
        kernels.run(kernel, arguments, tokens, logit_rows=rows if kernel.gather else None)
        x = given["x"][rows] if kernel.gather else given["x"]
        want, scale = expected(kernel, x, weights, given | {"residual": residual})
        worst = np.max(np.abs(out[:count] - want) / scale)
        assert worst < limit, f"{count} rows: off by {worst:.1e}"
        assert np.all(out[count] == 7)


@pytest.mark.parametrize("kernel", EMBEDS, ids=lambda kernel: f"{kernel.label}-{kernel.format}")
def test_embed(kernels, kernel):
    native, dense = matrix(kernel.format, kernel.vocab_size, kernel.hidden_size, seed=2)
    table = kernels.pack(kernel.format, native)
    for ids in ([36], [0, 15, 16, 36, 15]):
        out = aligned((len(ids) + 1, kernel.hidden_size), np.float32)
        out[:] = 7
        kernels.run(kernel, [table, out], len(ids), token_ids=np.array(ids, np.int32))
        assert np.array_equal(out[:-1], dense[ids] * np.float32(kernel.scale)) and np.all(out[-1] == 7)


@pytest.mark.parametrize("ranks", EMBEDS_OF_RANKS, ids=lambda ranks: ranks[0].format)
def test_embed_of_ranks_adds_up(kernels, ranks):
    tables = [matrix(rank.format, rank.vocab_size, rank.hidden_size, seed=2) for rank in ranks]
    dense = np.concatenate([own for _, own in tables])
    for ids in ([36], [0, 18, 19, 35, 36, 1]):
        total = np.zeros((len(ids), ranks[0].hidden_size), np.float32)
        for rank, (native, _) in zip(ranks, tables, strict=True):
            out = np.full_like(total, np.nan)
            kernels.run(rank, [kernels.pack(rank.format, native), out], len(ids), token_ids=np.array(ids, np.int32))
            total += out
        assert np.array_equal(total, dense[ids] * np.float32(ranks[0].scale))


def test_text_of_a_kernel():
    """Every dimension stands in it, and it is the same each time."""
    (gate_up,) = (kernel for kernel in CASES if kernel.label == "k_gelu")
    text = kernels_code([gate_up])
    assert text == kernels_code([gate_up]) and text.isascii()
    assert "gelu_tanh(rms_norm(x) @ w0.T) * (rms_norm(x) @ w1.T)" in text
    assert ".columns = 2304" in text and "q6_k_dot(panel, 2304, a, MLXR_M, y + i)" in text
    assert [param.name for param in gate_up.params] == ["x", "norm", "w0", "w1", "out"]


def test_helpers_have_one_name_each():
    helpers = {helper for kernel in CASES for helper in kernel.helpers}
    assert len({helper.name for helper in helpers}) == len(helpers)
