"""Matmuls of a tile: f32, bf16 where the machine has it, and 16-bit weights times columns in matrix tiles."""

import numpy as np
import pytest

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr_tests.c_harness import SHORT_MARCHES, address, aligned, c_library, compilers, marches
from mlxr_tests.cpu_kernels import HEADERS
from mlxr_tests.few import few
from mlxr_tests.native_floats import float_rows, round_bf16, widen_bf16

CODE = """
int begin(void) { return mlxr_ask_for_amx(); }
int has_bf16(void) { return MLXR_ROWS_FAST == MLXR_ROWS_BF16; }
int has_columns(void) { return MLXR_TRANSPOSES; }
size_t row_bytes(int bf16, int K) { return mlxr_row_bytes(bf16 ? MLXR_ROWS_BF16 : MLXR_ROWS_F32, K); }
void tile(int bf16, const uint8_t *x, size_t stride, int rows, const uint8_t *panels, size_t panel_bytes, int K,
          float *sums, int add) {
    mlxr_tiles_on();
    mlxr_tile(bf16 ? MLXR_ROWS_BF16 : MLXR_ROWS_F32, x, stride, rows, panels, panel_bytes, K, sums, add, x, 2);
    mlxr_tiles_off();
}
#if defined(MLXR_AMX)
void columns(int bf16, const uint8_t *w, int K, int valid, const uint8_t *rows, int m, uint8_t *scratch,
             float (*y)[16]) {
    mlxr_columns(rows, K, m, scratch);
    mlxr_tiles_on();
    if (bf16) float_panel_columns(MLXR_BF16, w, K, valid, scratch, m, y);
    else float_panel_columns(MLXR_F16, w, K, valid, scratch, m, y);
    mlxr_tiles_off();
}
#endif
"""
NO_AMX = ("-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")
BUILDS = [(march, compiler, ()) for compiler in compilers() for march in marches()]
CHOSEN = [b for b in BUILDS if b[0] in SHORT_MARCHES and (b[1] == compilers()[0] or b[0] == "native")]
if "x86-64-v2" in marches():
    BUILDS.append(("native", compilers()[0], NO_AMX))
    CHOSEN.append(BUILDS[-1])


@pytest.fixture(
    scope="module",
    params=few(BUILDS, CHOSEN, whole=True),
    ids=lambda build: f"{build[0]}-{build[1][-1]}{'-no-amx' * bool(build[2])}",
)
def lib(request):
    library = c_library(HEADERS, CODE, *request.param)
    assert library.begin() == 0
    return library


def check_tiles(lib, bf16, number_bytes, rounded, tile_rows):
    odd = () if bf16 else ((35, 9),)  # a tile of bf16 takes 32 columns at a time
    for columns, rows in ((32, 1), (64, 5), (96, 12), (160, 17), (32, tile_rows), *odd):
        rng = np.random.default_rng(columns + rows)
        x, w = rounded(rng.normal(size=(rows, columns))), rounded(rng.normal(size=(2, 16, columns)))
        stride = lib.row_bytes(bf16, columns)
        inputs = aligned((32, stride), np.uint8)
        panels = aligned((2, columns * 16 * number_bytes + 64), np.uint8)
        if bf16:
            inputs[:rows, : 2 * columns] = round_bf16(x).view(np.uint8)
            packed = round_bf16(w).reshape(2, 16, columns // 2, 2).transpose(0, 2, 1, 3)
        else:
            inputs[:rows, : 4 * columns] = x.view(np.uint8)
            packed = w.transpose(0, 2, 1)
        panels[:, :-64] = np.ascontiguousarray(packed).view(np.uint8).reshape(2, -1)
        exact = np.einsum("mk,pnk->pmn", x.astype(np.float64), w.astype(np.float64))
        sums = aligned((2, 32, 16), np.float32)
        sums[:] = np.nan
        for add in (0, 1):
            size = panels.shape[1]
            lib.tile(bf16, address(inputs), stride, rows, address(panels), size, columns, address(sums), add)
            assert np.allclose(sums[:, :rows], (1 + add) * exact, rtol=0, atol=1e-5 * np.sqrt(columns))


def test_f32_tiles(lib):
    check_tiles(lib, 0, 4, lambda x: x.astype(np.float32), 24)


def test_bf16_tiles(lib):
    if not lib.has_bf16():
        pytest.skip("no bf16 matmul in this instruction set")
    check_tiles(lib, 1, 2, lambda x: widen_bf16(round_bf16(x)), 24)


@pytest.mark.parametrize("format", [WeightFormat.F16, WeightFormat.BF16])
def test_columns(lib, format):
    if not lib.has_columns():
        pytest.skip("no matrix tiles in this instruction set")
    for valid, columns, m in ((16, 64, 5), (16, 320, 33), (11, 64, 16), (16, 40, 50), (3, 296, 64)):
        native, dense = float_rows(format, valid, columns, seed=m)
        x = widen_bf16(round_bf16(np.random.default_rng(m).normal(size=(m, columns))))
        rows = aligned((64, lib.row_bytes(1, columns)), np.uint8)
        rows[:m, : 2 * columns] = round_bf16(x).view(np.uint8)
        padded = -(-columns // 32) * 32
        scratch, y = aligned(64 * padded * 2, np.uint8), aligned((64, 16), np.float32)
        bf16 = format is WeightFormat.BF16
        lib.columns(int(bf16), address(native), columns, valid, address(rows), m, address(scratch), address(y))
        weights = widen_bf16(round_bf16(dense)).astype(np.float64)
        assert np.allclose(y[:m, :valid], x.astype(np.float64) @ weights.T, rtol=0, atol=1e-5 * np.sqrt(columns))
