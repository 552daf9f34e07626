"""Conversions of templates/cpu/simd.h against NumPy's, at every instruction set this machine has, by every compiler."""

import ctypes
import subprocess

import numpy as np
import pytest

from mlxr_tests.c_harness import CC, SHORT_MARCHES, address, c_library, check_cross_compiles, compilers, marches
from mlxr_tests.cpu_kernels import HEADERS as ALL_HEADERS
from mlxr_tests.few import few

HEADERS = ("common.h", "simd.h", "likeliest.h")
CODE = """
#define EACH(name, from, to, expression) \\
    void name(const from *x, to *y, int n) { for (int i = 0; i < n; i += MLXR_LANES) { expression; } }
EACH(f16_in, uint16_t, float, f32_store(y + i, f16_load(x + i)))
EACH(f16_out, float, uint16_t, f16_store(y + i, f32_load(x + i)))
EACH(bf16_in, uint16_t, float, f32_store(y + i, bf16_load(x + i)))
EACH(bf16_out, float, uint16_t, bf16_store(y + i, f32_load(x + i)))
EACH(soft_f16_in, uint16_t, float, f32_store(y + i, f16_widen_soft(u32_load16(x + i))))
EACH(soft_f16_out, float, int32_t, i32_store(y + i, (i32v)f16_narrow_soft(f32_load(x + i))))
EACH(nearest, float, int32_t, i32_store(y + i, i32_round(f32_load(x + i))))
EACH(from_bytes, int8_t, int32_t, i32_store(y + i, i32_load8(x + i)))
EACH(magnitude, float, float, f32_store(y + i, f32_abs(f32_load(x + i))))
void pairs(const float *x, const float *y, uint16_t *out) {
    i32_store(out, bf16_pairs(f32_load(x), f32_load(y)));
}
void one_f16_in(const uint16_t *x, float *y, int n) { for (int i = 0; i < n; i++) y[i] = f16_to_f32(x[i]); }
void one_f16_out(const float *x, uint16_t *y, int n) { for (int i = 0; i < n; i++) y[i] = f32_to_f16(x[i]); }
void one_bf16_in(const uint16_t *x, float *y, int n) { for (int i = 0; i < n; i++) y[i] = bf16_to_f32(x[i]); }
void one_bf16_out(const float *x, uint16_t *y, int n) { for (int i = 0; i < n; i++) y[i] = f32_to_bf16(x[i]); }
int lanes(void) { return MLXR_LANES; }
float sum(const float *x) { return f32_sum(f32_load(x)); }
float greatest(const float *x) { return f32_greatest(f32_load(x)); }
int32_t sum_i32(const int32_t *x) { return i32_sum(i32_load(x)); }
int32_t likeliest(const float *x, int32_t n) { return mlxr_likeliest(x, n); }
int32_t greatest_i32(const int32_t *x) { return i32_greatest(i32_load(x)); }
"""
BUILDS = [(march, compiler) for compiler in compilers() for march in marches()]
CHOSEN = [build for build in BUILDS if build[0] in SHORT_MARCHES]
ALL_16 = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


@pytest.fixture(scope="module", params=few(BUILDS, CHOSEN, whole=True), ids=lambda build: f"{build[0]}-{build[1][-1]}")
def lib(request):
    library = c_library(HEADERS, CODE, *request.param)
    library.sum.restype = library.greatest.restype = ctypes.c_float
    return library


def awkward_floats():
    """Floats of any bits, and those half-way between two f16 or bf16, and their neighbours."""
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        f16 = ALL_16.view(np.float16).astype(np.float32)
        middles = (f16 + np.roll(f16, 1)) / 2
    bf16 = ALL_16.astype(np.uint32) << 16
    bits = [rng.integers(0, 1 << 32, 1 << 18, np.uint32), middles.view(np.uint32), bf16 | 0x8000, bf16 | 0x7FFF]
    bits.append(middles.view(np.uint32) + np.uint32(1))
    return np.concatenate(bits).view(np.float32)


def check_same(got, wanted):
    """Equal bits, or both not a number."""
    integer = f"u{got.itemsize}"
    same = (got.view(integer) == wanted.view(integer)) | (np.isnan(got) & np.isnan(wanted))
    assert np.all(same), f"{np.count_nonzero(~same)} differ, {got[~same][:4]} for {wanted[~same][:4]}"


@pytest.mark.parametrize("name", ["f16_in", "soft_f16_in", "one_f16_in"])
def test_f16_to_f32(lib, name):
    out = np.zeros(ALL_16.size, np.float32)
    getattr(lib, name)(address(ALL_16), address(out), ALL_16.size)
    check_same(out, ALL_16.view(np.float16).astype(np.float32))


@pytest.mark.parametrize("name", ["f16_out", "soft_f16_out", "one_f16_out"])
def test_f32_to_f16(lib, name):
    x = awkward_floats()
    out = np.zeros(x.size, np.int32 if name.startswith("soft") else np.uint16)
    getattr(lib, name)(address(x), address(out), x.size)
    with np.errstate(all="ignore"):
        check_same(out.astype(np.uint16).view(np.float16), x.astype(np.float16))


@pytest.mark.parametrize("name", ["bf16_in", "one_bf16_in"])
def test_bf16_to_f32(lib, name):
    out = np.zeros(ALL_16.size, np.float32)
    getattr(lib, name)(address(ALL_16), address(out), ALL_16.size)
    assert np.array_equal(out.view(np.uint32), ALL_16.astype(np.uint32) << 16)


def as_bf16(x):
    """Nearest bf16, halves to even, as f32."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), x, rounded)


@pytest.mark.parametrize("name", ["bf16_out", "one_bf16_out"])
def test_f32_to_bf16(lib, name):
    x = awkward_floats()
    out = np.zeros(x.size, np.uint16)
    getattr(lib, name)(address(x), address(out), x.size)
    check_same((out.astype(np.uint32) << 16).view(np.float32), as_bf16(x))


def test_pairs_of_bf16(lib):
    lanes = lib.lanes()
    x = awkward_floats()
    x = x[np.isfinite(x) & (np.abs(x) > 1.2e-38)]
    for start in range(0, x.size - 2 * lanes, 997):
        low, high = x[start : start + lanes].copy(), x[start + lanes : start + 2 * lanes].copy()
        out = np.zeros((lanes, 2), np.uint16)
        lib.pairs(address(low), address(high), address(out))
        wide = (out.astype(np.uint32) << 16).view(np.float32)
        assert np.array_equal(wide[:, 0], as_bf16(low)) and np.array_equal(wide[:, 1], as_bf16(high))


def test_integers(lib):
    x = np.concatenate([np.arange(-800, 800) / 4, [-4194303.5, 4194302.5], np.zeros(14)]).astype(np.float32)
    out = np.zeros(x.size, np.int32)
    lib.nearest(address(x), address(out), x.size)
    assert np.array_equal(out, np.rint(x))
    numbers = np.arange(-128, 128).astype(np.int8)
    out = np.zeros(256, np.int32)
    lib.from_bytes(address(numbers), address(out), 256)
    assert np.array_equal(out, numbers)


def test_across_lanes(lib):
    lanes = lib.lanes()
    rng = np.random.default_rng(1)
    for _ in range(20):
        x = rng.normal(size=16).astype(np.float32)
        assert abs(lib.sum(address(x)) - x[:lanes].sum(dtype=np.float64)) < 1e-5
        assert lib.greatest(address(x)) == x[:lanes].max()
        integers = rng.integers(-(1 << 20), 1 << 20, 16).astype(np.int32)
        assert lib.sum_i32(address(integers)) == integers[:lanes].sum()
        assert lib.greatest_i32(address(integers)) == integers[:lanes].max()


def test_magnitudes(lib):
    x = np.array([0.0, -0.0, -1.5, np.inf, -np.inf, 2.0] + [-3.0] * 10, np.float32)
    out = np.zeros(16, np.float32)
    lib.magnitude(address(x), address(out), 16)
    assert np.array_equal(out.view(np.uint32), np.abs(x).view(np.uint32))


def test_a_gcc_that_has_no_shufflevector() -> None:
    """GCC 11 of Ubuntu 22.04, as this GCC plays it, with four lanes, as on ARM."""
    march = marches()[0]
    if compilers()[0] != CC or "clang" in subprocess.check_output(["cc", "--version"], text=True):
        pytest.skip("cc is not GCC")
    old = ("-Wno-builtin-macro-redefined", "-U__GNUC__", "-D__GNUC__=11", "-D__builtin_shufflevector=gcc_11_has_none")
    code = """
        int lanes(void) { return MLXR_LANES; }
        void turn(float *x) {
            f32v rows[MLXR_LANES];
            for (int i = 0; i < MLXR_LANES; i++) rows[i] = f32_load(x + MLXR_LANES * i);
            f32_store(x + MLXR_LANES * MLXR_LANES, f32_sums(rows));
            f32_transpose(rows);
            for (int i = 0; i < MLXR_LANES; i++) f32_store(x + MLXR_LANES * i, rows[i]);
        }"""
    library = c_library(ALL_HEADERS, code, march, CC, old)
    assert library.lanes() == 4
    rows = np.arange(20, dtype=np.float32)
    library.turn(address(rows))
    before = np.arange(16, dtype=np.float32).reshape(4, 4)
    assert np.array_equal(rows, [*before.T.ravel(), *before.sum(axis=1)])


@pytest.mark.parametrize("cpu", few(["generic", "apple_m1"], ["apple_m1"]))
def test_compiles_for_arm(cpu):
    check_cross_compiles(HEADERS, CODE, "aarch64-linux-gnu", cpu)


@pytest.mark.parametrize("width", [1, 5, 1000, 1024, 2500])
def test_likeliest(lib, width):
    rng = np.random.default_rng(width)
    rows = [*rng.standard_normal((8, width), np.float32), np.zeros(width, np.float32)]
    rows += [np.full(width, -np.inf, np.float32), *rng.integers(-3, 3, (8, width)).astype(np.float32)]
    rows += [np.append(np.full(width - 1, -1), at).astype(np.float32) for at in (0, -2)]
    for row in rows:
        beyond = np.append(row, np.float32(9))  # nothing past the row is read
        assert lib.likeliest(address(beyond), width) == np.argmax(row)
    assert 0 <= lib.likeliest(address(np.full(width, np.nan, np.float32)), width) < width
