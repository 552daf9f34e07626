"""RoPE frequencies of each scaling, against formulas written another way and against mlx-lm."""

import math

import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from mlxr.compiler.rope import rope_frequencies
from mlxr.compiler.spec.model import LinearScaling, Llama3Scaling, Rope

LLAMA31 = Llama3Scaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)


def test_plain() -> None:
    assert rope_frequencies(Rope(theta=10000.0), 4) == pytest.approx((1.0, 0.01), rel=1e-12)
    assert rope_frequencies(Rope(theta=64.0), 6) == pytest.approx((1.0, 0.25, 0.0625), rel=1e-12)


def test_the_rotated_part_alone_counts() -> None:
    assert rope_frequencies(Rope(theta=100.0, fraction=0.25), 8) == rope_frequencies(Rope(theta=100.0), 8)


def test_linear() -> None:
    scaled = rope_frequencies(Rope(scaling=LinearScaling(kind="linear", factor=4.0)), 8)
    assert np.multiply(scaled, 4) == pytest.approx(rope_frequencies(Rope(), 8), rel=1e-12)


def test_llama3_keeps_divides_and_interpolates() -> None:
    plain = rope_frequencies(Rope(theta=500000.0), 128)
    scaled = rope_frequencies(Rope(theta=500000.0, scaling=LLAMA31), 128)
    ratio = np.divide(plain, scaled)
    wavelengths = 2 * math.pi / np.array(plain)
    assert (ratio[wavelengths < 2048] == 1).all()
    assert ratio[wavelengths > 8192] == pytest.approx(8)
    between = ratio[(wavelengths > 2048) & (wavelengths < 8192)]
    assert len(between) >= 4 and (np.diff(between) > 0).all() and 1 < between[0] < between[-1] < 8
    assert (np.diff(scaled) < 0).all()


def test_llama3_is_continuous_at_its_borders() -> None:
    # The first pair always has frequency 1, so its wavelength is 2 pi; the factors put it beside a border.
    at = 2**20 / (2 * math.pi)
    for low, high, expected in ((at, at * 4, 1 / 8), (at / 4, at, 1.0)):
        for nudge in (1 - 1e-9, 1 + 1e-9):
            scaling = Llama3Scaling(
                kind="llama3",
                factor=8.0,
                low_freq_factor=low * nudge,
                high_freq_factor=high * nudge,
                original_context=2**20,
            )
            assert rope_frequencies(Rope(scaling=scaling), 8)[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_against_mlx_lm(theta: float, factor: float) -> None:
    config = {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": 512}
    theirs = initialize_rope(64, theta, False, config, 4096)._freqs
    scaling = Llama3Scaling(kind="llama3", factor=factor, original_context=512)
    ours = rope_frequencies(Rope(theta=theta, scaling=scaling), 64)
    np.testing.assert_allclose(ours, 1 / np.array(theirs), rtol=2e-6)
