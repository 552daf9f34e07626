"""Rows of the KV cache as bits, and what is read back of them."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.runtime.arrays.mlx_arrays import as_bits
from mlxr.runtime.hosts.mlx_ops.cache_rows import decode_rows, encode_rows
from mlxr_tests.specs import floats, random_array

SUBNORMAL = 2.0**-149


def q8_row(*numbers: float) -> tuple[list[int], float]:
    """The int8 numbers and the scale of one row."""
    bits = encode_rows(mx.array([numbers]), "q8")[0]
    return bits[:-4].view(np.int8).tolist(), float(bits[-4:].view(np.float32)[0])


@pytest.mark.parametrize(("dtype", "item_bytes"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_floats_are_rounded_as_mlx_rounds_them(dtype: str, item_bytes: int) -> None:
    rows = random_array(np.random.default_rng(0), (5, 3, 40), "f32")
    bits = encode_rows(rows, dtype)
    assert bits.shape == (5, 3, 40) and bits.itemsize == item_bytes
    rounded = rows.astype({"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}[dtype])
    np.testing.assert_array_equal(bits, as_bits(rounded))
    np.testing.assert_array_equal(floats(decode_rows(bits, dtype)), floats(rounded))


def test_q8_rows_have_their_own_scales() -> None:
    rows = random_array(np.random.default_rng(0), (5, 3, 40), "f32") * mx.array([1e-6, 1.0, 1e6])[:, None]
    bits = encode_rows(rows, "q8")
    assert bits.shape == (5, 3, 44) and bits.dtype == np.uint8
    numbers, scales = bits[..., :-4].view(np.int8), np.ascontiguousarray(bits[..., -4:]).view(np.float32)
    largest = np.abs(floats(rows)).max(-1, keepdims=True)
    np.testing.assert_array_equal(scales, largest / np.float32(127))
    np.testing.assert_array_equal(np.abs(numbers).max(-1), 127)
    error = np.abs(floats(decode_rows(bits, "q8")) - floats(rows))
    assert (error <= scales * 0.50001).all() and error.max() > 0.4 * scales.max()


def test_q8_halves_round_to_even() -> None:
    numbers, scale = q8_row(127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.0)
    assert numbers == [127, 0, 2, 2, 0, -2, -2, 0] and scale == 1.0


def test_q8_zeros_stay_zeros() -> None:
    numbers, scale = q8_row(*[0.0] * 8)
    assert numbers == [0] * 8 and scale == 0.0


def test_q8_subnormal_scales_do_not_overflow() -> None:
    numbers, scale = q8_row(190 * SUBNORMAL, -190 * SUBNORMAL, 3 * SUBNORMAL, *[0.0] * 5)
    assert scale == SUBNORMAL and numbers[:3] == [127, -127, 3]
    numbers, scale = q8_row(60 * SUBNORMAL, *[0.0] * 7)
    assert scale == 0.0 and numbers[0] == 0


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_q8_rows_that_are_not_finite_become_nan(value: float) -> None:
    rows = mx.array([[1.0, value, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    back = floats(decode_rows(encode_rows(rows, "q8"), "q8"))
    assert np.isnan(back[0]).all() and np.isfinite(back[1]).all()


def q4_by_matrix(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What q4 is to keep of rows [n, 32], by the whole matrix: numbers -32 to 31, and scales in bf16."""
    bits = np.arange(32)
    ones = np.array([[bin(i & j).count("1") for j in bits] for i in bits])
    mixed = rows.astype(np.float64) @ (1 - 2 * (ones % 2)) / 8
    extreme = np.take_along_axis(mixed, np.abs(mixed).argmax(-1)[:, None], -1)
    scales = floats(mx.array(extreme / -128, dtype=mx.float32).astype(mx.bfloat16)).astype(np.float64)
    return np.clip(np.rint(mixed / scales / 4), -32, 31), scales


@pytest.mark.parametrize("head_dim", [32, 64, 96])
def test_q4_groups_are_mixed_and_have_scales(head_dim: int) -> None:
    rows = random_array(np.random.default_rng(0), (5, 3, head_dim), "f32") * mx.array([1e-3, 1.0, 1e3])[:, None]
    bits, groups = encode_rows(rows, "q4"), head_dim // 32
    assert bits.shape == (5, 3, {32: 28, 64: 52, 96: 80}[head_dim]) and bits.dtype == np.uint8
    numbers, scales = q4_by_matrix(floats(rows).reshape(-1, 32))
    packed = bits[..., : 16 * groups].reshape(-1, 16)
    pairs, element = bits[..., 16 * groups : 24 * groups].reshape(-1, 8), np.arange(32)
    four = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.int8)
    two = pairs[:, element % 8] >> (element // 8 * 2) & 3
    np.testing.assert_array_equal(((four ^ 8) - 8) * 4 + two, numbers)
    stored = np.ascontiguousarray(bits[..., 24 * groups : 26 * groups]).view(np.uint16).astype(np.uint32) << 16
    np.testing.assert_array_equal(stored.view(np.float32).reshape(-1, 1), scales)
    assert (bits[..., 26 * groups :] == 0).all()
    errors = np.abs(floats(decode_rows(bits, "q4")) - floats(rows)).reshape(-1, 32).max(-1)
    assert (errors < 0.0625 * np.abs(floats(rows)).reshape(-1, 32).max(-1)).all()


def test_q4_zeros_stay_zeros() -> None:
    bits = encode_rows(mx.zeros((1, 32)), "q4")[0]
    assert (bits == 0).all() and not floats(decode_rows(bits, "q4")).any()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_q4_groups_that_are_not_finite_become_nan(value: float) -> None:
    rows = np.ones((1, 64), np.float32)
    rows[0, 40] = value
    back = floats(decode_rows(encode_rows(mx.array(rows), "q4"), "q4"))
    assert np.isfinite(back[0, :32]).all() and np.isnan(back[0, 32:]).all()
