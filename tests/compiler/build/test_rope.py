"""RoPE frequencies of each scaling, against formulas written another way and against mlx-lm."""

import math

import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from mlxr.compiler.build.rope import rope_frequencies, rope_scale
from mlxr.compiler.spec.model import BaseScaling, LinearScaling, Llama3Scaling, LongRopeScaling, Rope, YarnScaling
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import source_graph

LLAMA31 = Llama3Scaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)


def test_plain() -> None:
    assert rope_frequencies(Rope(theta=10000.0), 4) == pytest.approx((1.0, 0.01), rel=1e-12)
    assert rope_frequencies(Rope(theta=64.0), 6) == pytest.approx((1.0, 0.25, 0.0625), rel=1e-12)


def test_the_rotated_part_alone_counts() -> None:
    assert rope_frequencies(Rope(theta=100.0, fraction=0.25), 8) == rope_frequencies(Rope(theta=100.0), 8)


def test_linear() -> None:
    scaled = rope_frequencies(Rope(scaling=LinearScaling(kind="linear", factor=4.0)), 8)
    assert np.multiply(scaled, 4) == pytest.approx(rope_frequencies(Rope(), 8), rel=1e-12)


def test_base_keeps_the_fastest_pair_and_slows_the_slowest_by_its_factor() -> None:
    scaled = rope_frequencies(Rope(scaling=BaseScaling(kind="base", factor=50.0)), 32)
    ratio = np.divide(rope_frequencies(Rope(), 32), scaled)
    assert (ratio[0], ratio[-1]) == (1.0, pytest.approx(50.0, rel=1e-12))


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


def yarn(**changes: object) -> YarnScaling:
    return YarnScaling.model_validate({"kind": "yarn", "factor": 8.0, "original_context": 4096} | changes)


def test_yarn_keeps_divides_and_interpolates() -> None:
    plain = np.array(rope_frequencies(Rope(theta=150000.0), 64))
    scaled = np.array(rope_frequencies(Rope(theta=150000.0, scaling=yarn()), 64))
    turns = 4096 * plain / (2 * math.pi)
    ratio = plain / scaled
    first, last = (np.argmax(turns < bound) for bound in (32, 1))
    assert ratio[: first - 1] == pytest.approx(1) and ratio[last + 1 :] == pytest.approx(8)
    assert (np.diff(ratio[first:last]) > 0).all() and len(ratio[first:last]) > 5


@pytest.mark.parametrize("theta", [10000.0, 150000.0])
@pytest.mark.parametrize("factor", [1.0, 4.0, 40.0])
@pytest.mark.parametrize("betas", [(32, 1), (4, 2), (1e5, 1e4)])
def test_yarn_against_mlx_lm(theta: float, factor: float, betas: tuple[float, float]) -> None:
    config = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": 4096,
        "beta_fast": betas[0],
        "beta_slow": betas[1],
    }
    theirs = initialize_rope(64, theta, False, config, 131072)
    rope = Rope(theta=theta, scaling=yarn(factor=factor, beta_fast=float(betas[0]), beta_slow=float(betas[1])))
    np.testing.assert_allclose(rope_frequencies(rope, 64), 1 / np.array(theirs._freqs), rtol=3e-6)
    assert rope_scale(rope, 131072) == pytest.approx(theirs.mscale)


def test_an_untruncated_ramp_begins_between_pairs() -> None:
    """By hand: 8 pairs, theta e, so pair i turns 2 pi e^(-i/8) / (2 pi) times in a context of 2 pi."""
    scaling = yarn(factor=2.0, original_context=1000, beta_fast=100.0, beta_slow=50.0, truncate=False)
    rope = Rope(theta=math.e, scaling=scaling)
    ratio = np.array(rope_frequencies(Rope(theta=math.e), 16)) / np.array(rope_frequencies(rope, 16))
    first, last = (8 * math.log(1000 / (2 * math.pi * beta)) for beta in (100, 50))
    ramps = np.clip((np.arange(8) - first) / (last - first), 0, 1)
    np.testing.assert_allclose(1 / ratio, 1 - ramps / 2, rtol=1e-12)
    assert 0 < ramps[4] < 1


def test_yarn_scale() -> None:
    assert rope_scale(Rope(scaling=yarn(factor=1.0)), 1) == 1.0
    assert rope_scale(Rope(scaling=yarn(factor=32.0)), 1) == pytest.approx(0.1 * math.log(32) + 1, rel=1e-12)
    assert rope_scale(Rope(scaling=yarn(attention_factor=0.75)), 1) == 0.75
    assert rope_scale(Rope(scaling=LLAMA31), 1) == rope_scale(Rope(), 1) == 1.0


SHORT, LONG = (1.0, 1.5, 2.0, 2.5), (1.0, 4.0, 16.0, 64.0)


def longrope(**changes: object) -> Rope:
    scaling = {"kind": "longrope", "short_factors": SHORT, "long_factors": LONG, "original_context": 4096}
    return Rope(scaling=LongRopeScaling.model_validate(scaling | changes))


def test_longrope_divides_by_the_factors_of_the_context() -> None:
    plain = np.array(rope_frequencies(Rope(), 8))
    np.testing.assert_allclose(rope_frequencies(longrope(), 8, 4096), plain / SHORT, rtol=1e-12)
    np.testing.assert_allclose(rope_frequencies(longrope(), 8, 4097), plain / LONG, rtol=1e-12)


def test_longrope_against_mlx_lm() -> None:
    config = {
        "rope_type": "longrope",
        "original_max_position_embeddings": 4096,
        "short_factor": list(SHORT),
        "long_factor": list(LONG),
    }
    theirs = initialize_rope(8, 10000.0, False, config, 131072)
    np.testing.assert_allclose(rope_frequencies(longrope(), 8, 131072), 1 / np.array(theirs._freqs), rtol=2e-6)
    assert rope_scale(longrope(), 131072) == pytest.approx(theirs._scale)
    assert rope_scale(longrope(), 4096) == 1.0
    assert rope_scale(longrope(attention_factor=1.19), 64) == 1.19


def test_layers_of_the_same_frequencies_share_a_constant() -> None:
    spec = family_spec("windows-and-ropes")
    graph = source_graph(spec)
    assert [v.name for v in graph.values if v.role == "constant"] == ["rope_frequencies", "rope_frequencies_1"]
    used = [op.inputs["frequencies"] for op in graph.ops if op.kind == "rope" and op.name.endswith("q_rotated")]
    assert used == ["rope_frequencies", "rope_frequencies", "rope_frequencies_1", "rope_frequencies"]
    assert graph.value("rope_frequencies").data[1] == pytest.approx(700 ** (-2 / 40))
    assert graph.value("rope_frequencies_1").data[1] == pytest.approx(10000 ** (-2 / 40) / 8)
    assert not [v for v in source_graph(family_spec("no-rope")).values if v.role == "constant"]
