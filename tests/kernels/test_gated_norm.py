"""The gated norm: the reference against the formula, the kernels of both targets against the reference."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import DType
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.targets.cpu.kernels.gated_norm import CpuGatedNorm
from mlxr.compiler.targets.metal.kernels.gated_norm import GatedNormKernel
from mlxr_tests.cpu_kernels import CpuKernels
from mlxr_tests.cpu_numbers import normed, sigmoid
from mlxr_tests.few import few
from mlxr_tests.kernel_bench import kernel_text, run_kernel
from mlxr_tests.reference_ops import evaluate
from mlxr_tests.specs import floats, random_array
from mlxr_tests.tolerances import Mismatch, check_op

pytestmark = pytest.mark.usefixtures("kernel_host")

TOKENS, EPS = 5, 1e-5
CASES = {
    "heads": {"width": 120, "groups": 3, "shared": True, "gate_width": 120},
    "groups, gate first": {"width": 96, "groups": 2, "gate_first": True, "first": 8, "gate_width": 144},
    "one group of many columns": {"width": 2112, "groups": 1, "gate_first": True, "act": "sigmoid"},
    "sigmoid": {"width": 256, "groups": 2, "act": "sigmoid", "shared": True, "first": 4, "gate_width": 264},
    "no weight": {"width": 48, "groups": 4, "weight": None},
    "gate alone": {"width": 88, "groups": 1, "weight": None, "eps": None},
}


def metal_kernel(width, groups, activation="f32", **changes):
    given = {"act": "silu", "gate_first": False, "first": 0, "gate_width": width, "shared": False, "weight": "f32"}
    given |= {"eps": EPS} | changes
    weight = DType(given.pop("weight")) if given["weight"] else given.pop("weight")
    return GatedNormKernel("gated_norm", width, groups, weight=weight, activation=DType(activation), **given)


def cpu_kernel(case):
    k = metal_kernel(**CASES[case])
    own = k.weight is not None and k.groups > 1 and not k.shared
    numbers = (k.width, k.groups, k.eps or 0.0, k.act, k.gate_first, k.first, k.gate_width, k.weight is not None, own)
    return CpuGatedNorm("gated_norm", *numbers)


def inputs_of(k, seed=0):
    rng, dtype = np.random.default_rng(seed), str(k.activation)
    inputs = {
        "x": random_array(rng, (TOKENS, k.width), dtype),
        "gate": random_array(rng, (TOKENS, k.gate_width), dtype),
    }
    inputs["gate"] = inputs["gate"] * mx.array(30.0, inputs["gate"].dtype)
    mx.eval(inputs["gate"])
    if k.weight:
        inputs["weight"] = random_array(rng, (k.piece if k.shared else k.width,), str(k.weight))
    return inputs


def reference(k, inputs):
    attrs = {"groups": k.groups, "eps": k.eps, "activation": k.act, "gate_first": k.gate_first, "first": k.first}
    return floats(evaluate("gated_norm", inputs, attrs)["out"])


def check(k, text=None, seed=0):
    inputs = inputs_of(k, seed)
    got = run_kernel(k, inputs, {"out": (TOKENS, k.width)}, (k.groups, TOKENS, 1), seed=seed, text=text)["out"]
    check_op("gated_norm", floats(got), reference(k, inputs), str(k.activation))


@pytest.mark.parametrize("case", CASES)
def test_reference(case):
    k = metal_kernel(**CASES[case])
    inputs = inputs_of(k)
    x, gate = (floats(inputs[port]).astype(np.float64) for port in ("x", "gate"))
    z = gate[:, k.first : k.first + k.width]
    factors = sigmoid(z) * (z if k.act == "silu" else 1)
    y = x * factors if k.gate_first else x
    if k.eps is not None:
        weight = floats(inputs["weight"]).reshape(-1, k.piece) if k.weight else 1
        y = normed("rms", y.reshape(TOKENS, k.groups, -1), weight, None, k.eps).reshape(TOKENS, -1)
    np.testing.assert_allclose(reference(k, inputs), y if k.gate_first else y * factors, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_metal(case):
    check(metal_kernel(**CASES[case]))


@pytest.mark.parametrize(("activation", "weight"), few([("bf16", "f32"), ("f16", "bf16")], [("bf16", "f32")]))
def test_types(activation, weight):
    check(metal_kernel(96, 2, activation, weight=weight, first=8, gate_width=112))


@pytest.fixture(scope="module")
def kernels():
    with CpuKernels([cpu_kernel(case) for case in CASES], 2) as built:
        yield built


@pytest.mark.parametrize("case", CASES)
def test_cpu(kernels, case):
    k, inputs = cpu_kernel(case), inputs_of(metal_kernel(**CASES[case]))
    given = {port: np.ascontiguousarray(floats(array)) for port, array in inputs.items()}
    given["out"] = np.full((TOKENS + 1, k.width), 7, np.float32)
    kernels.run(k, [given[param.name] for param in k.params], TOKENS)
    check_op("gated_norm", given["out"][:TOKENS], reference(metal_kernel(**CASES[case]), inputs), "f32")
    assert np.all(given["out"][TOKENS] == 7)


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("case", "old", "new"),
    [
        ("heads", "weight + at", "weight + (at + first) % 120u"),
        ("groups, gate first", "v[i] *= z[i];", ""),
        ("groups, gate first", "* 144u + 8u", "* 144u"),
        ("sigmoid", "1.0f / (1.0f", "z / (1.0f"),
        ("one group of many columns", "threadgroup_barrier(mem_flags::mem_threadgroup);", ""),
    ],
)
def test_mistake_is_noticed(case, old, new):
    k = metal_kernel(**CASES[case])
    _, text = kernel_text(k)
    assert old in text, "the mistake must be possible"
    with pytest.raises((Mismatch, KernelFault)):
        check(k, text.replace(old, new))
