"""Conversion to the types of weights: rounding as MLX has it, and numbers that do not fit."""

import struct

import gguf
import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights import gguf_header
from mlxr.runtime.weights.element_types import ElementType, decode, encode, gguf_type, safetensors_type


def test_bf16_rounds_like_mlx():
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    bits = np.concatenate([bits, (bits & 0xFFFF0000) | 0x8000, (bits & 0xFFFF0000) | 0x7FFF])  # ties and beside them
    numbers = bits.view(np.float32)
    numbers = numbers[np.isfinite(numbers) & (np.abs(numbers) < 3e38)]
    expected = np.array(mx.array(numbers).astype(mx.bfloat16).view(mx.uint16))
    np.testing.assert_array_equal(encode(numbers, "bf16"), expected)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_infinity_and_nan_pass(dtype):
    special = np.array([np.inf, -np.inf, np.nan, -np.nan, 1.0], np.float32)
    special = np.append(special, np.array([0x7F800001, 0x7FFFFFFF], np.uint32).view(np.float32))  # NaN that round up
    encoded = encode(special, dtype)
    back = (encoded.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else encoded.astype(np.float32)
    np.testing.assert_array_equal(back, special)


@pytest.mark.parametrize(
    ("number", "source", "dtype"),
    [(65504.5, "f4", "f16"), (-7e4, "f4", "f16"), (3.4e38, "f4", "bf16"), (-1e39, "f8", "f32"), (1e300, "f8", "bf16")],
)
def test_numbers_that_do_not_fit(number, source, dtype):
    with pytest.raises(WeightsError, match=f"is beyond the largest one of {dtype}, .*compile with a wider weight type"):
        encode(np.array([1, number, np.inf], source), dtype)


def test_the_largest_numbers_fit():
    assert encode(np.array([-65504.0], np.float32), "f16")[0] == -65504
    assert encode(np.array([3.3895313892515355e38], np.float32), "bf16")[0] == 0x7F7F


def test_f16_to_bf16_and_f32():
    numbers = np.array([1.0, -2.5, 65504, 6e-8], np.float16)
    np.testing.assert_array_equal(encode(numbers, "f32"), numbers.astype(np.float32))
    expected = np.array(mx.array(numbers).astype(mx.bfloat16).view(mx.uint16))
    np.testing.assert_array_equal(encode(numbers, "bf16"), expected)


def test_unknown_types():
    assert safetensors_type("F13") is None
    assert gguf_type(4) is None
    assert gguf_type(8).block_elements == 32


def test_types_are_those_of_the_gguf_package():
    for kind, (elements, size_bytes) in gguf.GGML_QUANT_SIZES.items():
        ours = gguf_type(int(kind))
        assert ours == ElementType(kind.name, elements, size_bytes)
        if ours.is_readable and elements > 1:
            assert decode(np.zeros((1, size_bytes), np.uint8), ours).shape == (1, elements)
    sizes = {"U": "BHIQ", "I": "bhiq", "F": "fd", "B": "?"}
    for kind in gguf.GGUFValueType:
        if kind.name in ("STRING", "ARRAY"):
            assert int(kind) not in gguf_header._SCALARS
        else:
            assert gguf_header._SCALARS[int(kind)] in sizes[kind.name[0]]
            bits = int("".join(filter(str.isdigit, kind.name)) or 8)
            assert struct.calcsize(gguf_header._SCALARS[int(kind)]) * 8 == bits


def test_floats_of_8_bits():
    codes = np.arange(256, dtype=np.uint8)
    four, five = (decode(codes[None], safetensors_type(name))[0] for name in ("F8_E4M3", "F8_E5M2"))
    np.testing.assert_array_equal(four, np.array(mx.from_fp8(mx.array(codes), dtype=mx.float32)))
    np.testing.assert_array_equal(five, (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float32))
