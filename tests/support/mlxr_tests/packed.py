"""The packed formats of templates/cpu/formats as functions on NumPy arrays, and random weights in native blocks."""

import ctypes
import functools

import gguf
import numpy as np

from mlxr.compiler.formats import WeightFormat
from mlxr_tests.c_harness import address, aligned, c_library

FORMATS = [format for format in WeightFormat if format.is_quantised]
HEADERS = (
    *("common.h", "simd.h", "activations.h", "formats/integer_dot.h", "formats/interleave.h"),
    *("formats/q8_0.h", "formats/q4_0.h", "formats/k_scales.h", "formats/q4_k.h", "formats/q5_k.h", "formats/q6_k.h"),
    "formats/panels.h",
)

ACT_BLOCK = np.dtype(
    [
        *(("q", "i1", 32), ("d", "f4"), ("sum", "f4")),
        *(("start8", "i4"), ("start128", "i4"), ("start32", "i4", 2), ("unused", "i4", 2)),
    ]
)

_COMMON = """
int lanes(void) { return MLXR_LANES; }
size_t act_bytes(int K) { return mlxr_act_bytes(K); }
void quantise(const float *x, int K, uint8_t *dst) { mlxr_quantise(x, K, dst); }
"""

_OF_FORMAT = """
void @_pack(uint8_t *dst, const uint8_t *src, int row_bytes, int rows, int blocks) {
    const uint8_t *at[16];
    for (int i = 0; i < 16; i++) at[i] = i < rows ? src + i * row_bytes : NULL;
    @_pack_panel(dst, at, blocks);
}
void @_f32(const uint8_t *panel, int K, int k0, int k1, float *dst) { @_panel_f32(panel, K, k0, k1, dst); }
void @_bf16(const uint8_t *panel, int K, int k0, int k1, uint16_t *dst) { @_panel_bf16(panel, K, k0, k1, dst); }
void @_act_dot(const uint8_t *panel, int K, const uint8_t *acts, int m, float (*out)[16]) {
    mlxr_act a[8];
    for (int i = 0; i < 8; i++) a[i] = mlxr_act_at(acts + (i < m ? i : 0) * mlxr_act_bytes(K), K);
    switch (m) {
        case 1: @_dot(panel, K, a, 1, out); break;
        case 2: @_dot(panel, K, a, 2, out); break;
        case 3: @_dot(panel, K, a, 3, out); break;
        case 5: @_dot(panel, K, a, 5, out); break;
        case 8: @_dot(panel, K, a, 8, out); break;
    }
}
void @_f32_dot(const uint8_t *panel, int K, const float *x, int m, float (*out)[16]) {
    const float *rows[4];
    for (int i = 0; i < 4; i++) rows[i] = x + (i < m ? i : 0) * K;
    switch (m) {
        case 1: @_dot_exact(panel, K, rows, 1, out); break;
        case 3: @_dot_exact(panel, K, rows, 3, out); break;
        case 4: @_dot_exact(panel, K, rows, 4, out); break;
    }
}
"""

SNIPPET = _COMMON + "".join(_OF_FORMAT.replace("@", str(format)) for format in FORMATS)
DOT_ROWS, EXACT_ROWS = (1, 2, 3, 5, 8), (1, 3, 4)


@functools.cache
def library(march: str, compiler: tuple[str, ...], flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """All formats' functions."""
    return c_library(HEADERS, SNIPPET, march, compiler, flags)


def random_blocks(format: WeightFormat, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Native rows, [rows, bytes] uint8: any bits, except that f16 are finite and neither tiny nor huge."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows, columns // format.block_elements, format.block_bytes), np.uint8)
    at = {WeightFormat.Q4_K: (0, 2), WeightFormat.Q5_K: (0, 2), WeightFormat.Q6_K: (208,)}.get(format, (0,))
    for start in at:
        signs = rng.choice([-1.0, 1.0], blocks.shape[:2])
        halves = (signs * np.exp(rng.uniform(-8, 1, blocks.shape[:2]))).astype(np.float16)
        blocks[:, :, start : start + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def dequantised(format: WeightFormat, native: np.ndarray) -> np.ndarray:
    """Native rows' numbers, [rows, columns] f32."""
    return gguf.quants.dequantize(native, gguf.GGMLQuantizationType[format.gguf])


def pack(lib: ctypes.CDLL, format: WeightFormat, native: np.ndarray) -> np.ndarray:
    """Up to 16 native rows as a panel."""
    panel = aligned(16 * native.shape[1], np.uint8)
    blocks = native.shape[1] // format.block_bytes
    getattr(lib, f"{format}_pack")(address(panel), address(native), native.shape[1], len(native), blocks)
    return panel


def quantise(lib: ctypes.CDLL, x: np.ndarray) -> np.ndarray:
    """Rows of activations, [rows, lines] of ACT_BLOCK: of a row's lines the first columns / 32 are used."""
    acts = aligned((len(x), lib.act_bytes(x.shape[1]) // ACT_BLOCK.itemsize), ACT_BLOCK)
    for row, act in zip(x, acts, strict=True):
        lib.quantise(address(row), len(row), address(act))
    return acts


def read_back(acts: np.ndarray, columns: int) -> np.ndarray:
    """The numbers that rows of `quantise` stand for, [rows, columns] f64."""
    used = acts[:, : columns // 32]
    return (used["q"].astype(np.float64) * used["d"].astype(np.float64)[..., None]).reshape(len(acts), columns)
