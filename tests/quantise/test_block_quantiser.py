"""Blocks: the `gguf` package reads them back close to the numbers; halves, ties, zeros and bad numbers."""

import gguf
import numpy as np
import pytest

from mlxr.compiler.errors import WeightsError
from mlxr.quantise.block_quantiser import BLOCK_FORMATS, block_sizes, quantise_rows

ERRORS = {
    **{"q8_0": 0.006, "q6_k": 0.02, "q5_k": 0.04, "q5_1": 0.04, "q5_0": 0.045, "q4_k": 0.08, "q4_1": 0.08},
    **{"q4_0": 0.09, "iq4_nl": 0.08, "iq4_xs": 0.085, "mxfp4": 0.13, "q3_k": 0.17, "q2_k": 0.32},
}
"""The most that the root of the mean square error may be, of normal numbers."""


@pytest.mark.parametrize("format", sorted(BLOCK_FORMATS))
def test_numbers_come_back(format: str) -> None:
    numbers = np.random.default_rng(1).normal(size=(3, 512)).astype(np.float32)
    numbers[2, :256] = 0
    written = quantise_rows(numbers, format)
    elements, size = block_sizes(format)
    assert written.shape == (3, 512 // elements * size)
    back = gguf.dequantize(written, gguf.GGMLQuantizationType[format.upper()])
    error = float(np.sqrt(np.mean((back - numbers) ** 2)))
    assert ERRORS[format] / 3 < error < ERRORS[format]
    assert not back[2, :256].any()


@pytest.mark.parametrize("format", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4"])
def test_the_gguf_package_writes_the_same(format: str) -> None:
    numbers = np.random.default_rng(2).normal(size=(65, 96)).astype(np.float32) * 1e-3
    expected = gguf.quantize(numbers, gguf.GGMLQuantizationType[format.upper()])
    assert np.array_equal(quantise_rows(numbers, format), expected)


def test_halves_of_scales_round_to_even_and_may_be_small() -> None:
    """A q8_0 block's scale is its greatest number by 127, as a half: also one without an exponent."""
    scales = np.float32(2) ** np.arange(-26, 9, dtype=np.float32) * np.float32(1 + 3 / 2048)
    numbers = np.zeros((len(scales), 32), np.float32)
    numbers[:, 5] = scales * 127
    written = quantise_rows(numbers, "q8_0")[:, :2].copy().view(np.float16)[:, 0]
    assert np.array_equal(written, (numbers[:, 5] / np.float32(127)).astype(np.float16))


def test_more_important_columns_lose_less() -> None:
    numbers = np.random.default_rng(3).normal(size=(40, 256)).astype(np.float32)
    weights = np.where(np.arange(256) % 8 == 0, 100, 1).astype(np.float32)
    for format in ("q2_k", "q3_k", "q4_k", "q4_0", "iq4_xs"):
        plain, weighed = (
            gguf.dequantize(quantise_rows(numbers, format, given), gguf.GGMLQuantizationType[format.upper()])
            for given in (None, weights)
        )
        errors = [float(np.mean((back - numbers)[:, ::8] ** 2)) for back in (plain, weighed)]
        assert errors[1] < 0.9 * errors[0], format


def test_numbers_that_no_format_has() -> None:
    for bad in (np.nan, np.inf):
        numbers = np.ones((2, 256), np.float32)
        numbers[1, 7] = bad
        with pytest.raises(WeightsError, match="infinite or none"):
            quantise_rows(numbers, "q4_k")
