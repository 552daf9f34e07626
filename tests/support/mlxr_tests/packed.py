"""The packed formats of templates/cpu/formats as functions on NumPy arrays, and random weights in native rows.

A native row of a format in planes has its planes one after the other.
"""

import ctypes
import functools
from collections.abc import Collection

import numpy as np

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.cpu.format_headers import affine_definitions, format_headers
from mlxr_tests import block_fields
from mlxr_tests.block_fields import exponent_bytes, half_bytes
from mlxr_tests.c_harness import address, aligned, c_library

AFFINE = [format for format in WeightFormat if format.affine]
BLOCKS = [format for format in WeightFormat if format.is_quantised and not format.affine]
_SOME = ("2_g32_f16", "3_g64_bf16", "4_g64_f32", "4_g64_bf16", "5_g128_f16", "6_g32_bf16", "8_g128_f32", "8_g64_f16")
FORMATS = [*BLOCKS, *(WeightFormat(f"affine{name}") for name in _SOME)]
"""All block formats, and affine formats with each number of bits, group size and scale type."""

ACT_BLOCK = np.dtype(
    [
        *(("q", "i1", 32), ("d", "f4"), ("sum", "f4")),
        *(("start8", "i4"), ("start128", "i4"), ("start32", "i4", 2), ("sums", "f4", 2)),
    ]
)

_COMMON = """
int lanes(void) { return MLXR_LANES; }
size_t act_bytes(int K) { return mlxr_act_bytes(K); }
void quantise(const float *x, int K, uint8_t *dst) { mlxr_quantise(x, K, dst); }
"""

_OF_FORMAT = """
void @_pack(uint8_t *dst, const uint8_t *const *rows, int blocks) { @_pack_panel(dst, rows, blocks); }
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
    const float *rows[8], *totals[8];
    float sums[8][256] = {0};
    for (int i = 0; i < 8; i++) {
        rows[i] = x + (i < m ? i : 0) * K;
        for (int k = 0; k < K; k++) sums[i][k / 16] += rows[i][k];
        totals[i] = sums[i];
    }
    switch (m) {
        case 1: @_dot_exact(panel, K, rows, totals, 1, out); break;
        case 3: @_dot_exact(panel, K, rows, totals, 3, out); break;
        case 8: @_dot_exact(panel, K, rows, totals, 8, out); break;
    }
}
"""

DOT_ROWS, EXACT_ROWS = (1, 2, 3, 5, 8), (1, 3, 8)


def headers(formats: Collection[WeightFormat]) -> tuple[str, ...]:
    """The headers that these formats need."""
    return ("common.h", "simd.h", "activations.h", *(format_headers(formats) or format_headers([WeightFormat.Q8_0])))


def snippet(formats: Collection[WeightFormat]) -> str:
    """The C functions of these formats."""
    return affine_definitions(formats) + _COMMON + "".join(_OF_FORMAT.replace("@", str(name)) for name in formats)


@functools.cache
def library(
    march: str, compiler: tuple[str, ...], formats: tuple[WeightFormat, ...] = (), flags: tuple[str, ...] = ()
) -> ctypes.CDLL:
    """The compiled functions of these formats."""
    return c_library(headers(formats), snippet(formats), march, compiler, flags)


def random_blocks(format: WeightFormat, rows: int, columns: int, seed: int = 0, spread: float = 9) -> np.ndarray:
    """Native rows, [rows, bytes] uint8, with random bits but moderate scales.

    Scales have either sign and are at most e in size; the smallest are less by a factor of exp(spread).
    """
    rng = np.random.default_rng(seed)
    blocks = columns // format.block_elements
    planes = []
    for plane in format.planes:
        if plane.dtype is not None and plane.dtype != "u8":
            planes.append(_as_type(_scales(rng, rows, blocks, spread), str(plane.dtype)))
            continue
        data = rng.integers(0, 256, (rows, blocks, plane.block_bytes), np.uint8)
        for start in half_bytes(format):
            halves = _scales(rng, rows, blocks, spread).astype(np.float16)
            data[:, :, start : start + 2] = halves[..., None].view(np.uint8)
        for start in (0,) if plane.dtype == "u8" else exponent_bytes(format):
            data[:, :, start] = rng.integers(127 - int(spread), 130, (rows, blocks))
        planes.append(data.reshape(rows, -1))
    return np.concatenate(planes, axis=1)


def _scales(rng: np.random.Generator, rows: int, blocks: int, spread: float) -> np.ndarray:
    return rng.choice([-1.0, 1.0], (rows, blocks)) * np.exp(rng.uniform(1 - spread, 1, (rows, blocks)))


def _as_type(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Rows of numbers as bytes of f16, bf16 or f32."""
    if dtype == "bf16":
        return np.ascontiguousarray(numbers.astype(np.float32).view(np.uint16)[:, 1::2]).view(np.uint8)
    return numbers.astype({"f16": np.float16, "f32": np.float32}[dtype]).view(np.uint8)


def planes_of(format: WeightFormat, native: np.ndarray) -> list[np.ndarray]:
    """The planes of native rows, each [rows, bytes] and contiguous."""
    blocks = native.shape[1] // format.block_bytes
    ends = np.cumsum([blocks * plane.block_bytes for plane in format.planes])
    return [np.ascontiguousarray(plane) for plane in np.split(native, ends[:-1], axis=1)]


def dequantised(format: WeightFormat, native: np.ndarray) -> np.ndarray:
    """The numbers of native rows, [rows, columns] f32."""
    return block_fields.dequantised(format, planes_of(format, native))


def pack(lib: ctypes.CDLL, format: WeightFormat, native: np.ndarray) -> np.ndarray:
    """Up to 16 native rows as a panel."""
    panel = aligned(16 * native.shape[1], np.uint8)
    planes = planes_of(format, native)
    rows = (ctypes.c_void_p * (16 * len(planes)))()
    for index, plane in enumerate(planes):
        for row in range(len(native)):
            rows[16 * index + row] = plane[row].ctypes.data
    getattr(lib, f"{format}_pack")(address(panel), rows, native.shape[1] // format.block_bytes)
    return panel


def quantise(lib: ctypes.CDLL, x: np.ndarray) -> np.ndarray:
    """Quantised rows of activations, [rows, lines] of ACT_BLOCK; a row uses its first columns / 32 lines."""
    acts = aligned((len(x), lib.act_bytes(x.shape[1]) // ACT_BLOCK.itemsize), ACT_BLOCK)
    for row, act in zip(x, acts, strict=True):
        lib.quantise(address(row), len(row), address(act))
    return acts


def read_back(acts: np.ndarray, columns: int) -> np.ndarray:
    """The numbers of the rows that `quantise` made, [rows, columns] f64."""
    used = acts[:, : columns // 32]
    return (used["q"].astype(np.float64) * used["d"].astype(np.float64)[..., None]).reshape(len(acts), columns)
