"""Packed weight formats against gguf's own dequantising, with each instruction set here, by each compiler."""

import numpy as np
import pytest

from mlxr_tests.block_fields import exponent_bytes, half_bytes
from mlxr_tests.c_harness import SHORT_MARCHES, address, check_cross_compiles, compilers, marches
from mlxr_tests.few import covering, few
from mlxr_tests.packed import (
    ACT_BLOCK,
    AFFINE,
    DOT_ROWS,
    EXACT_ROWS,
    FORMATS,
    dequantised,
    headers,
    library,
    pack,
    quantise,
    random_blocks,
    read_back,
    snippet,
)

BUILDS = [
    *((march, compilers()[0]) for march in marches()),
    *((march, other) for march in ("x86-64-v3", "native") if march in marches() for other in compilers()[1:]),
]
# Each format as this machine's first compiler makes it, and every third by one other build, the next one's by the next.
NATIVE = ("native", compilers()[0])
OTHERS = [build for build in BUILDS if build != NATIVE and build[0] in SHORT_MARCHES]
LIBRARIES = [(format, build) for format in FORMATS for build in BUILDS]
CHOSEN = [(format, NATIVE) for format in FORMATS]
CHOSEN += [(format, OTHERS[index % len(OTHERS)]) for index, format in enumerate(FORMATS[::3]) if OTHERS]
# Unequal numbers of blocks, odd ones too (pairs), and panels with rows missing.
SHAPES = {
    256: ((16, 512), (11, 768), (3, 256)),
    128: ((16, 384), (11, 128), (3, 512)),
    64: ((16, 128), (11, 192), (3, 64)),
    32: ((16, 128), (11, 96), (3, 32), (13, 320)),
}


@pytest.fixture(
    scope="module", params=few(LIBRARIES, CHOSEN, whole=True), ids=lambda p: f"{p[0]}-{p[1][0]}-{p[1][1][-1]}"
)
def built(request):
    return request.param


@pytest.fixture(scope="module")
def format(built):
    return built[0]


# What this machine's first compiler makes is one library for several formats, for which it reads the headers once.
TOGETHER = {format: tuple(FORMATS[at : at + 6]) for at in range(0, len(FORMATS), 6) for format in FORMATS[at : at + 6]}


@pytest.fixture(scope="module")
def lib(built):
    format, build = built
    return library(*build, TOGETHER[format] if build == NATIVE else (format,))


@pytest.fixture(
    scope="module", params=few(BUILDS, [NATIVE, *OTHERS], whole=True), ids=lambda build: f"{build[0]}-{build[1][-1]}"
)
def plain(request):
    """Without any format."""
    return library(*request.param)


def panels(lib, format):
    """Panels, their dense numbers with zeros for the missing rows [16, K], and K."""
    for seed, (rows, columns) in enumerate(SHAPES[format.block_elements]):
        native = random_blocks(format, rows, columns, seed)
        dense = np.zeros((16, columns), np.float32)
        dense[:rows] = dequantised(format, native)
        yield pack(lib, format, native), dense, columns


def rounded_to_bf16(x):
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def activations(rows, columns, seed):
    """Rows whose blocks differ much in size; one block is zero."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)) * np.repeat(np.exp(rng.normal(size=(rows, columns // 32)) * 2), 32, axis=1)
    x[0, :32] = 0
    return x.astype(np.float32)


def check_close(got, weights, x, limit):
    """Checks products [rows, 16] against exact ones, relative to the sum of the magnitudes."""
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    scale = np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T
    worst = np.max(np.abs(got - exact) / np.maximum(scale, 1e-30))
    assert worst < limit, f"off by {worst:.2e} of the sum of magnitudes"


def test_panels_hold_what_gguf_reads(lib, format):
    for panel, dense, columns in panels(lib, format):
        ranges = {(0, columns), (32 * (columns // 64), columns), (0, 32), (columns - 32, columns)}
        for first, last in ranges:
            f32 = np.full((last - first, 16), np.nan, np.float32)
            getattr(lib, f"{format}_f32")(address(panel), columns, first, last, address(f32))
            assert np.array_equal(f32.T, dense[:, first:last])
            pairs = np.zeros(((last - first) // 2, 16, 2), np.uint16)
            getattr(lib, f"{format}_bf16")(address(panel), columns, first, last, address(pairs))
            wanted = rounded_to_bf16(np.ascontiguousarray(dense[:, first:last]) + np.float32(0))
            got = pairs.transpose(1, 0, 2).reshape(16, -1)
            # -0 and 0 are the same weight.
            assert np.array_equal(np.where(got == 0x8000, 0, got), np.where(wanted == 0x8000, 0, wanted))


@pytest.mark.long
def test_panels_are_the_same_bytes_everywhere(lib, format):
    reference = library(*BUILDS[0], (format,))
    for (panel, _, _), (other, _, _) in zip(panels(lib, format), panels(reference, format), strict=True):
        assert np.array_equal(panel, other)


def test_integer_dot(lib, format):
    for panel, dense, columns in panels(lib, format):
        for rows in DOT_ROWS:
            acts = quantise(lib, activations(rows, columns, seed=rows))
            out = np.full((rows + 1, 16), 7, np.float32)
            getattr(lib, f"{format}_act_dot")(address(panel), columns, address(acts), rows, address(out))
            check_close(out[:rows], dense, read_back(acts, columns), 1e-6)
            assert np.all(out[rows] == 7)


def test_integer_dot_of_the_greatest_numbers(lib, format):
    """Where 16-bit sums of products would overflow first: weights of the greatest magnitude, activations of +-127."""
    columns = 2 * format.block_elements
    for byte in (0x7F, 0x80, 0x00, 0xFF):
        native = random_blocks(format, 16, columns)
        if len(format.planes) == 1:
            blocks = native.reshape(16, -1, format.block_bytes)
            kept = blocks.copy()
            blocks[:] = byte
            for at in (*exponent_bytes(format), *(half + i for half in half_bytes(format) for i in range(2))):
                blocks[:, :, at] = kept[:, :, at]
        else:
            native[:, : 2 * format.planes[0].block_bytes] = byte
        x = np.where(np.arange(columns) % 64 < 40, 1, -1).astype(np.float32) * np.array([[1], [-1], [1]], np.float32)
        acts, panel = quantise(lib, x), pack(lib, format, native)
        for rows in (1, 3):  # some CPUs multiply two at a time
            out = np.zeros((rows, 16), np.float32)
            getattr(lib, f"{format}_act_dot")(address(panel), columns, address(acts), rows, address(out))
            check_close(out, dequantised(format, native), read_back(acts[:rows], columns), 1e-6)


def test_exact_dot(lib, format):
    for panel, dense, columns in panels(lib, format):
        for rows in EXACT_ROWS:
            x = activations(rows, columns, seed=rows)
            out = np.full((rows + 1, 16), 7, np.float32)
            getattr(lib, f"{format}_f32_dot")(address(panel), columns, address(x), rows, address(out))
            check_close(out[:rows], dense, x, 1e-6)
            assert np.all(out[rows] == 7)


def test_activations(plain):
    lib = plain
    x = activations(3, 160, seed=1)
    x[1, 32:64] = np.arange(32) - 15.5  # halves, and the greatest at the end
    acts = quantise(lib, x)
    assert ACT_BLOCK.itemsize == 64 and lib.act_bytes(160) == 5 * 64 and lib.act_bytes(128) == 5 * 64
    blocks = x.reshape(3, 5, 32)
    greatest = np.abs(blocks).max(axis=-1)
    inverse = np.divide(np.float32(127), greatest, out=np.zeros_like(greatest), where=greatest > 0)
    q = np.rint(blocks * inverse[..., None]).astype(np.int32)
    assert np.array_equal(acts["q"], q) and np.abs(q).max() == 127
    assert np.array_equal(acts["d"], greatest / np.float32(127))
    sums = q.sum(axis=-1)
    assert np.array_equal(acts["sum"], acts["d"] * sums.astype(np.float32))
    assert np.array_equal(acts["start8"], -8 * sums) and np.array_equal(acts["start128"], -128 * sums)
    halves = q.reshape(3, 5, 2, 16).sum(axis=-1)
    assert np.array_equal(acts["start32"], -32 * halves)
    assert np.array_equal(acts["sums"], acts["d"][..., None] * halves.astype(np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_stay_visible(lib, format, bad):
    columns = 2 * format.block_elements
    x = activations(1, columns, seed=3)
    x[0, 33] = bad
    acts = quantise(lib, x)
    assert not np.isfinite(acts["d"][0, 1]) and np.all(np.isfinite(acts["d"][0, 2:]))
    out = np.zeros((1, 16), np.float32)
    panel = pack(lib, format, random_blocks(format, 16, columns))
    getattr(lib, f"{format}_act_dot")(address(panel), columns, address(acts), 1, address(out))
    assert not np.any(np.isfinite(out))


def test_tiny_activations_are_zero(plain):
    acts = quantise(plain, np.full((1, 32), 1e-38, np.float32))
    assert not acts["q"].any() and acts["sum"][0, 0] == 0


def test_scales_that_are_no_numbers_crash_nothing(lib, format):
    """Any bits at all: what comes out is NaN or infinite where the scales are."""
    rng = np.random.default_rng(5)
    columns = 2 * format.block_elements
    for byte in (0xFF, 0x7C, 0xFC, None):
        native = np.full_like(random_blocks(format, 16, columns), byte or 0)
        if byte is None:
            native[:] = rng.integers(0, 256, native.shape, np.uint8)
        panel, dense = pack(lib, format, native), dequantised(format, native)
        f32 = np.zeros((columns, 16), np.float32)
        getattr(lib, f"{format}_f32")(address(panel), columns, 0, columns, address(f32))
        assert np.array_equal(np.isfinite(f32.T), np.isfinite(dense))
        x = activations(1, columns, seed=4)
        acts, out = quantise(lib, x), np.zeros((2, 16), np.float32)
        getattr(lib, f"{format}_act_dot")(address(panel), columns, address(acts), 1, address(out))
        getattr(lib, f"{format}_f32_dot")(address(panel), columns, address(x), 1, address(out[1]))
        assert not np.any(np.isfinite(out) & np.isnan(dense).any(axis=1))


@pytest.mark.parametrize("format", few(AFFINE, covering(AFFINE, lambda f: vars(f.affine).values())), ids=str)
def test_every_affine_format(format):
    """Packing, decoding and one dot product, as this machine's first compiler makes them."""
    lib = library(*NATIVE, (format,))
    for panel, dense, columns in panels(lib, format):
        f32 = np.zeros((columns, 16), np.float32)
        getattr(lib, f"{format}_f32")(address(panel), columns, 0, columns, address(f32))
        assert np.array_equal(f32.T, dense)
        x = activations(1, columns, seed=6)
        acts, out = quantise(lib, x), np.zeros((1, 16), np.float32)
        getattr(lib, f"{format}_act_dot")(address(panel), columns, address(acts), 1, address(out))
        check_close(out, dense, read_back(acts, columns), 1e-6)


@pytest.mark.parametrize("format", few(FORMATS, FORMATS[::11]), ids=str)
@pytest.mark.parametrize("cpu", few(["generic", "apple_m1", "neoverse_v1"], ["apple_m1"]))
def test_compiles_for_arm(cpu, format):
    check_cross_compiles(headers([format]), snippet([format]), "aarch64-linux-gnu", cpu)
