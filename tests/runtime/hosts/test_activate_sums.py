"""The kernel that activates sums on NVIDIA cards: its text, compiled for this CPU, does what MLX's functions do."""

import ctypes
import math
from importlib.resources import files
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Finish, MatmulCall
from mlxr.compiler.formats.dtypes import DType
from mlxr.runtime.hosts.cuda import activate_sums
from mlxr.runtime.hosts.cuda.activate_sums import activated
from mlxr.runtime.hosts.cuda.recorded_products import KINDS
from mlxr.runtime.hosts.mlx.library import matmul
from mlxr_tests.shared_library import shared_library
from mlxr_tests.specs import floats

CARD = """
struct place { unsigned x; };
static thread_local place blockIdx, threadIdx;
#define __device__ static
#define __global__
#define __launch_bounds__(threads)
#define __shared__ static
#define asm(...)
#define __syncthreads()
#define __shfl_xor_sync(lanes, number, distance) (number)
#define rsqrtf(x) (1 / __builtin_sqrtf(x))
#define expf __builtin_expf
#define expm1f __builtin_expm1f
#define log1pf __builtin_log1pf
#define fabsf __builtin_fabsf
#define erff __builtin_erff
#define tanhf __builtin_tanhf
#define fmaxf __builtin_fmaxf
#define fminf __builtin_fminf
static float __uint_as_float(unsigned bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
static unsigned __float_as_uint(float x) { unsigned bits; __builtin_memcpy(&bits, &x, 4); return bits; }
"""
"""What NVIDIA's compiler knows without a header, as far as the text needs it."""
LAUNCH = """
#define LAUNCH(NAME) \\
extern "C" void launch_##NAME(const void* sums, void* out, const int* n, float limit, int blocks) { \\
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) \\
    for (threadIdx.x = 0; threadIdx.x < 256; threadIdx.x++) \\
      mlxr_activate_##NAME((const mlxr_##NAME*)sums, (mlxr_##NAME*)out, n[0], n[1], n[2], n[3], n[4], limit); }
LAUNCH(bf16)
LAUNCH(f32)
"""
ACTIVATIONS = [kind for kind in KINDS if kind not in (None, "xielu")]
FINISHES = [
    *(Finish(activation=kind) for kind in ACTIVATIONS[:-1]),  # type: ignore[arg-type]  # they are names of activations
    *(Finish(activation=kind, gated=True) for kind in ACTIVATIONS),  # type: ignore[arg-type]  # likewise
    Finish(activation="swiglu_oai", gated=True, limit=0.5),
    Finish(activation="silu", gated=True, limit=0.5),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels as functions."""
    folder = tmp_path_factory.mktemp("activate")
    text = files("mlxr.templates").joinpath("hosts/beside_products_on_cuda.cuh").read_text("utf-8")
    (folder / "kernels.cpp").write_text(CARD + text + LAUNCH)
    return shared_library(folder / "kernels.cpp", folder / "kernels.so", "-Wno-everything")


@pytest.fixture
def launched(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are launched, which this CPU executes."""
    names: list[str] = []

    def launch(*, name: str, inputs: list[mx.array], output_shapes: Any, scalars: list[Any], **options: Any) -> Any:
        names.append(name)
        sums = np.ascontiguousarray(np.array(inputs[0].view(mx.uint16 if name.endswith("bf16") else mx.uint32)))
        out = np.zeros(output_shapes[0], sums.dtype)
        *numbers, limit = scalars
        assert all(isinstance(number, int) for number in numbers) and isinstance(limit, float)
        (grid, _, _), (threads, _, _) = options["grid"], options["threadgroup"]
        function = getattr(library, f"launch_{name.removeprefix(activate_sums.ACTIVATE)}")
        places = (ctypes.c_void_p(array.ctypes.data) for array in (sums, out))
        function(*places, (ctypes.c_int * 5)(*numbers), ctypes.c_float(limit), grid // threads)
        return [mx.array(out).view(options["output_dtypes"][0])]

    monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", launch)
    monkeypatch.setattr(activate_sums, "products_image", lambda _: b"")
    return names


@pytest.mark.parametrize("columns", [40, 37])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
def test_it_computes_what_mlx_does(launched: list[str], dtype: DType, columns: int) -> None:
    """Columns in vectors, and one by one; each activation, gated, and limited. NaN stays NaN."""
    mlx, rng = mx.bfloat16 if dtype == DType.BF16 else mx.float32, np.random.default_rng(3)
    for finish in FINISHES:
        width = columns * (2 if finish.gated else 1)
        inputs = {
            "x": mx.array(rng.normal(size=(5, 16)), mlx),
            "weight": mx.array(rng.normal(size=(width, 16)), mlx),
        }
        inputs["x"][3, 7] = math.nan
        call = MatmulCall(function="matmul", label="mlx", ports=(), dtype=dtype, finish=finish)
        with mx.stream(mx.cpu):
            expected, found = floats(matmul(call, inputs)), floats(matmul(call, inputs, activated))
        assert found.shape == (5, columns) and np.isnan(found[3]).all()
        np.testing.assert_allclose(found, expected, rtol=1e-2 if dtype == DType.BF16 else 2e-5, atol=2e-6)
    assert launched == [f"mlxr_activate_{dtype}"] * len(FINISHES)


def test_what_has_no_kernel_is_left_to_mlx(launched: list[str]) -> None:
    inputs = {name: mx.ones(shape) for name, shape in (("x", (2, 8)), ("weight", (6, 8)), ("residual", (2, 6)))}
    for finish, names in (
        (Finish(activation="silu"), ("residual",)),
        (Finish(activation="silu", out_scale=2.0), ()),
        (Finish(activation="silu", out_cap=2.0), ()),
        (Finish(activation="silu", out_limit=2.0), ()),
    ):
        given = {name: array for name, array in inputs.items() if name in ("x", "weight", *names)}
        matmul(MatmulCall(function="matmul", label="mlx", ports=(), dtype=DType.F32, finish=finish), given, activated)
    assert not launched
