"""exp and the activations against double precision, and what they make of infinities and NaN."""

import math
import re

import numpy as np
import pytest

from mlxr.compiler.targets.scores import LOG2_E
from mlxr_tests.c_harness import SHORT_MARCHES, address, c_library, compilers, marches, text_of
from mlxr_tests.few import few

HEADERS = ("common.h", "simd.h", "math.h")
NAMES = ("exp", "silu", "gelu", "gelu_tanh", "relu", "relu2")
BOUNDED = ("sigmoid", "tanh")
CODE = "".join(
    f"void {name}s(const float *x, float *y, int n) {{\n"
    f"    for (int i = 0; i < n; i += MLXR_LANES) f32_store(y + i, f32_{name}(f32_load(x + i)));\n}}\n"
    for name in NAMES + BOUNDED
)
BUILDS = [(march, compiler) for compiler in compilers() for march in marches()]
CHOSEN = [build for build in BUILDS if build[0] in SHORT_MARCHES]
INF, NAN = math.inf, math.nan


@pytest.fixture(scope="module", params=few(BUILDS, CHOSEN, whole=True), ids=lambda build: f"{build[0]}-{build[1][-1]}")
def lib(request):
    return c_library(HEADERS, CODE, *request.param)


def call(lib, name, x):
    x = np.resize(np.asarray(x, np.float32), -(-len(x) // 16) * 16)
    y = np.zeros_like(x)
    getattr(lib, f"{name}s")(address(x), address(y), len(x))
    return x.astype(np.float64), y


def test_exp(lib):
    x, y = call(lib, "exp", np.linspace(-86.5, 88.7, 200_000))
    assert np.max(np.abs(y / np.exp(x) - 1)) < 1.5 * 2**-23
    x, y = call(lib, "exp", np.linspace(-110, 95, 20_000))
    with np.errstate(over="ignore"):
        exact = np.exp(x)
        assert np.all(np.abs(y - exact)[x < -80] < 3e-38)
        assert np.all(np.isinf(y) == np.isinf(exact.astype(np.float32)))


def test_no_number_is_subnormal(lib):
    _, y = call(lib, "exp", np.linspace(-105, -86, 5_000))
    assert np.all((y == 0) | (y >= np.finfo(np.float32).tiny))


@pytest.mark.parametrize("name", NAMES[1:])
def test_activations(lib, name):
    x, y = call(lib, name, np.concatenate([np.linspace(-12, 12, 100_000), [0.0, -0.0, 1e-30, -1e-30, 80, -80]]))
    u = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    erfc = np.array([math.erfc(-v / math.sqrt(2)) for v in x])
    exact = {
        "silu": x / (1 + np.exp(-x)),
        "gelu": x / 2 * erfc,
        "gelu_tanh": x * np.exp(-np.logaddexp(0, -u)),
        "relu": np.maximum(x, 0),
        "relu2": np.maximum(x, 0) ** 2,
    }[name]
    assert np.all(np.abs(y - exact) <= 4e-7 + 4e-7 * np.abs(exact))


def test_bounded(lib):
    x, y = call(lib, "tanh", np.concatenate([np.linspace(-12, 12, 100_000), np.geomspace(1e-30, 1, 10_000)]))
    assert np.max(np.abs(y / np.tanh(x) - 1)) < 2.5 * 2**-23
    x, y = call(lib, "sigmoid", np.linspace(-80, 80, 100_000))
    assert np.max(np.abs(y * (1 + np.exp(-x)) - 1)) < 4 * 2**-23
    for name, least in zip(BOUNDED, (0, -1), strict=True):
        assert np.array_equal(call(lib, name, [INF, 1e30, -1e30, -INF])[1][:4], [1, 1, least, least])
        assert np.isnan(call(lib, name, [NAN, 1.0])[1][0])


def test_past_the_range(lib):
    assert np.array_equal(call(lib, "exp", [INF, -INF, 0.0, 1e30, -1e30])[1][:5], [INF, 0, 1, INF, 0])
    for name in NAMES[1:]:
        large = [INF, 40_000, INF] if name == "relu2" else [INF, 200, 1e30]
        assert np.array_equal(call(lib, name, [INF, 200, 1e30, -200, -1e30])[1][:5], np.float32([*large, 0, 0]))
    for name in NAMES:
        assert np.isnan(call(lib, name, [NAN, 1.0])[1][0])


def test_headers_have_the_log2_e_of_the_templates():
    (number,) = re.findall(r"#define MLXR_LOG2_E (\S+)f ", text_of(["common.h"], ""))
    assert np.float32(number) == np.float32(LOG2_E)
