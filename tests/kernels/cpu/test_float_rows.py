"""Weights in rows of f32, f16 and bf16: dot products and panels, at even addresses, with rows and columns left over."""

import numpy as np
import pytest

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr_tests.c_harness import address, c_library, compilers, marches
from mlxr_tests.cpu_kernels import HEADERS
from mlxr_tests.few import few
from mlxr_tests.native_floats import float_rows, round_bf16, widen_bf16

CODE = """
int pairs(void) {
#if defined(MLXR_AVX512)
    return 1;
#else
    return 0;
#endif
}
#define CALL(format, m) case m: float_panel_dot(format, w, K, valid, x, stride, m, y); break;
#define FUNCTIONS(name, format)                                                                                     \\
    void dot_##name(const uint8_t *w, int K, int valid, const float *x, int stride, int m, float (*y)[16]) {        \\
        switch (m) { CALL(format, 1) CALL(format, 2) CALL(format, 4) CALL(format, 8) CALL(format, 12) }             \\
    }                                                                                                               \\
    void f32_##name(const uint8_t *w, int K, int valid, int k0, int k1, float *dst) {                               \\
        float_panel_f32(format, w, K, valid, k0, k1, dst);                                                          \\
    }                                                                                                               \\
    void row_##name(const uint8_t *w, int K, float *to) { float_row(format, w, K, to); }                            \\
    BF16(name, format)
#if defined(MLXR_AVX512)
#define BF16(name, format)                                                                                          \\
    void bf16_##name(const uint8_t *w, int K, int valid, int k0, int k1, uint16_t *dst) {                           \\
        float_panel_bf16(format, w, K, valid, k0, k1, dst);                                                         \\
    }
#else
#define BF16(name, format)
#endif
FUNCTIONS(f32, MLXR_F32)
FUNCTIONS(f16, MLXR_F16)
FUNCTIONS(bf16, MLXR_BF16)
#if defined(MLXR_BF16_MATMUL) && !defined(MLXR_AMX)
#define PAIRS(name, format)                                                                                         \\
    void pairs_##name(const uint8_t *w, int K, int valid, const uint8_t *x, int m, float (*y)[16]) {                \\
        const size_t stride = mlxr_row_bytes(MLXR_ROWS_BF16, K);                                                    \\
        MLXR_BY_12_ROWS(m, float_panel_pairs(format, w, K, valid, x, stride, MLXR_M, y))                            \\
    }                                                                                                               \\
    int pair_bytes_##name(int K) { return (int)mlxr_row_bytes(MLXR_ROWS_BF16, K); }
PAIRS(f16, MLXR_F16)
PAIRS(bf16, MLXR_BF16)
#endif
"""
BUILDS = [(march, compiler) for compiler in compilers() for march in marches()]
FORMATS = [format for format in WeightFormat if not format.is_quantised]
SHAPES = ((16, 48), (13, 40), (1, 136), (5, 8), (5, 1304))


CHOSEN = [build for build in BUILDS if build[1] == compilers()[0] and build[0] in {"x86-64-v2", "neon", "native"}]


@pytest.fixture(scope="module", params=few(BUILDS, CHOSEN, whole=True), ids=lambda build: f"{build[0]}-{build[1][-1]}")
def lib(request):
    return c_library(HEADERS, CODE, *request.param)


@pytest.mark.parametrize("format", FORMATS)
def test_dot(lib, format):
    for rows, columns in SHAPES:
        native, dense = float_rows(format, rows, columns, seed=columns)
        stride = -(-columns // 16) * 16
        for m in (1, 2, 4, 8, 12):
            x = np.zeros((m, stride), np.float32)
            x[:, :columns] = np.random.default_rng(m).normal(size=(m, columns))
            y = np.full((m + 1, 16), 7, np.float32)
            getattr(lib, f"dot_{format}")(address(native), columns, rows, address(x), stride, m, address(y))
            exact = x[:, :columns].astype(np.float64) @ dense.astype(np.float64).T
            assert np.allclose(y[:m, :rows], exact, rtol=0, atol=2e-6 * np.sqrt(columns))
            assert not y[:m, rows:].any() and np.all(y[m] == 7)


@pytest.mark.parametrize("format", [WeightFormat.F16, WeightFormat.BF16])
def test_dot_of_pairs(lib, format):
    if not hasattr(lib, f"pairs_{format}"):
        return  # this CPU multiplies no bf16, or in matrix tiles
    for rows, columns in SHAPES:
        native, dense = float_rows(format, rows, columns, seed=columns)
        weights = widen_bf16(round_bf16(dense))
        stride = getattr(lib, f"pair_bytes_{format}")(columns) // 2
        for m in (1, 4, 8, 12):
            x = np.zeros((m, stride), np.uint16)
            x[:, :columns] = round_bf16(np.random.default_rng(m).normal(size=(m, columns)).astype(np.float32))
            y = np.full((m + 1, 16), 7, np.float32)
            getattr(lib, f"pairs_{format}")(address(native), columns, rows, address(x), m, address(y))
            exact = widen_bf16(x[:, :columns]).astype(np.float64) @ weights.astype(np.float64).T
            assert np.allclose(y[:m, :rows], exact, rtol=0, atol=2e-6 * np.sqrt(columns))
            assert not y[:m, rows:].any() and np.all(y[m] == 7)


@pytest.mark.parametrize("format", FORMATS)
def test_panels(lib, format):
    for rows, columns in SHAPES:
        native, dense = float_rows(format, rows, columns, seed=columns)
        padded = np.zeros((16, -(-columns // 32) * 32), np.float32)
        padded[:rows, :columns] = dense
        for first in range(0, columns, 32):
            last = min(columns, first + 96)
            f32 = np.full((last - first + 1, 16), 7, np.float32)
            getattr(lib, f"f32_{format}")(address(native), columns, rows, first, last, address(f32))
            assert np.array_equal(f32[:-1].T, padded[:, first:last]) and np.all(f32[-1] == 7)
            if not lib.pairs():
                continue
            last = -(-last // 32) * 32
            pairs = np.full(((last - first) // 2 + 1, 16, 2), 7, np.uint16)
            getattr(lib, f"bf16_{format}")(address(native), columns, rows, first, last, address(pairs))
            assert np.array_equal(pairs[:-1].transpose(1, 0, 2).reshape(16, -1), round_bf16(padded[:, first:last]))
            assert np.all(pairs[-1] == 7)


@pytest.mark.parametrize("format", FORMATS)
def test_rows(lib, format):
    for columns in (8, 24, 64):
        native, dense = float_rows(format, 1, columns, seed=1)
        y = np.full(columns + 1, 7, np.float32)
        getattr(lib, f"row_{format}")(address(native), columns, address(y))
        assert np.array_equal(y[:-1], dense[0]) and y[-1] == 7
