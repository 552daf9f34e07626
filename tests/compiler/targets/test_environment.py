"""Numbers reach kernels exactly, and what is undefined or has no literal never does."""

import math

import jinja2
import numpy as np
import pytest

from mlxr.compiler.build.rope import rope_frequencies
from mlxr.compiler.spec.model import Rope
from mlxr.compiler.targets.environment import environment, float_literal


@pytest.mark.parametrize(
    ("value", "literal"),
    [(1, "1.0f"), (0.1, "0.100000001f"), (-2.5, "-2.5f"), (1e-5, "9.99999975e-06f"), (3e38, "3.00000001e+38f")],
)
def test_float_literal(value, literal):
    assert float_literal(value) == literal


def test_float_literal_is_the_nearest_fp32_number():
    """Also where 9 digits of the double are nearer to another one: 500000^(-14/32) is such a number."""
    awkward = 500000.0 ** (-14 / 32)
    assert np.float32(f"{awkward:.9g}") != np.float32(awkward)
    values = [awkward]
    for theta in (10000.0, 500000.0, 1000000.0):
        for rotary_dim in (32, 64, 80, 96, 128, 256):
            values += rope_frequencies(Rope(theta=theta), rotary_dim)
    for value in values:
        assert np.float32(float_literal(value).removesuffix("f")) == np.float32(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_literal(value):
    with pytest.raises(ValueError, match="has no literal"):
        float_literal(value)


def test_undefined_name_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="head_dim"):
        environment().from_string("#define HEAD_DIM {{ head_dim }}").render()
