"""Rows of inputs get the same bits alone and beside others, whatever the compiler would make of sums of products.

For many CPUs GCC leaves a loop of one such sum as products and sums, and makes FMAs of a loop of several. It can be
told to do so on any.
"""

from typing import Any

import numpy as np
import pytest

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.runtime.hosts.cpu.toolchain import find_compilers
from mlxr_tests.c_harness import address, c_library, marches
from mlxr_tests.cpu_kernels import HEADERS
from mlxr_tests.cpu_specs import SPECS
from mlxr_tests.family_specs import FAMILY_SPECS
from mlxr_tests.few import few
from mlxr_tests.native_floats import float_rows
from mlxr_tests.quick_c import is_gcc
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.ways import check_same_bits

CODE = """
#define CALL(m) void dot_##m(const uint8_t *w, int K, int valid, const float *x, int stride, float (*y)[16]) { \\
    float_panel_dot(MLXR_F32, w, K, valid, x, stride, m, y); \\
}
CALL(1) CALL(2) CALL(4)
"""
CASES: dict[str, dict[str, Any]] = {
    "steady-f32": SPECS["f32"] | {"compute": "fast", "deterministic": True},
    "exact-delta": FAMILY_SPECS["delta"] | {"compute": "exact"},
    "exact-ssm": FAMILY_SPECS["ssm"] | {"compute": "exact"},
}
WITH_FMA = [march for march in marches() if march in {"x86-64-v3", "x86-64-v4"}]


@pytest.fixture(autouse=True)
def sums_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has GCC compile, with that wish."""
    if not is_gcc(find_compilers()[0]):
        pytest.skip("only GCC has the choice")
    monkeypatch.setenv("MLXR_CPU_CFLAGS", "--param=avoid-fma-max-bits=512")


@pytest.mark.parametrize("march", few(WITH_FMA, WITH_FMA[-1:]))
def test_a_row_beside_others(march: str) -> None:
    library = c_library(HEADERS, CODE, march)
    for valid, columns in ((13, 64), (1, 40), (15, 61), (4, 1304)):
        native, _ = float_rows(WeightFormat.F32, valid, columns, seed=columns)
        stride = -(-columns // 16) * 16
        x = np.zeros((4, stride), np.float32)
        x[:, :columns] = np.random.default_rng(valid).normal(size=(4, columns))
        y = {m: np.zeros((4, 16), np.float32) for m in (1, 2, 4)}
        for m, products in y.items():
            getattr(library, f"dot_{m}")(address(native), columns, valid, address(x), stride, address(products))
            np.testing.assert_array_equal(products[0], y[1][0], f"{m} rows times {valid} of {columns}")


@pytest.mark.long
@pytest.mark.parametrize("march", WITH_FMA)
@pytest.mark.parametrize("name", CASES)
def test_whole_steps(monkeypatch: pytest.MonkeyPatch, name: str, march: str) -> None:
    monkeypatch.setenv("MLXR_CPU_ARCH", march)
    check_same_bits(compiled(small_spec(**CASES[name]), target="cpu"), threads=(2,))
