"""The gated delta rule: the reference against the formula, the kernels of both targets against the reference."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import KernelFault
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.targets.columns import Columns
from mlxr.compiler.targets.cpu.kernels.gated_delta import CpuGatedDelta
from mlxr.compiler.targets.metal.kernels.gated_delta import GatedDeltaKernel
from mlxr_tests.c_harness import compilers, marches
from mlxr_tests.cpu_kernels import CpuKernels, Sequences
from mlxr_tests.delta_cases import HEADS, LAYER, LAYERS, TABLE, by_formula, delta_case
from mlxr_tests.few import few
from mlxr_tests.kernel_bench import kernel_text, run_kernel
from mlxr_tests.specs import floats

pytestmark = pytest.mark.usefixtures("kernel_host")


def check(got, want, error=3e-6):
    assert np.max(np.abs(got - want)) <= error * np.max(np.abs(want))


@pytest.mark.parametrize("name", HEADS)
def test_reference(name):
    case = delta_case(name)
    for got, want in zip(case.reference(), by_formula(case), strict=True):
        check(got, want)


def columns_of(case, dtype="f32"):
    firsts = {port: first for port, (first, _) in case.heads.columns.items()}
    return {port: Columns(DType(dtype), case.inputs[port].shape[1], first) for port, first in firsts.items()}


def cpu_kernel(name):
    case = delta_case(name)
    return CpuGatedDelta("gated_delta", 0, LAYERS, case.heads, **columns_of(case))


def metal_kernel(case, dtype="f32"):
    return GatedDeltaKernel("gated_delta", LAYERS, case.heads, **columns_of(case, dtype))


def run_metal(case, dtype="f32", text=None):
    """The result and the states after the batch."""
    kernel, states, table = metal_kernel(case, dtype), mx.array(np.array(case.inputs["states"])), np.array(TABLE)
    table = np.concatenate([[table.shape[1]], table.reshape(-1)]).astype(np.int32)
    layer, token = (mx.array([number] * 8, dtype=mx.uint32) for number in (LAYER, 6))
    inputs = case.inputs | {"states": states, "state_table": mx.array(table), "layer": layer, "token": token}
    shapes = {"out": (case.tokens, kernel.heads.width), "token_out": (8,)}
    grid = (kernel.heads.num_heads * kernel.splits, len(TABLE), 1)
    outputs = run_kernel(kernel, inputs, shapes, grid, in_place=["states"], text=text)
    assert (np.array(outputs["token_out"]) == 7).all()
    return floats(outputs["out"]), np.array(states)


@pytest.mark.parametrize("name", HEADS)
def test_metal(name):
    case = delta_case(name)
    for got, want in zip(run_metal(case), case.reference(), strict=True):
        check(got, want)


@pytest.mark.parametrize("dtype", few(["bf16", "f16"], ["bf16"]))
def test_metal_types(dtype):
    case = delta_case("several values to a key", dtype)
    (out, states), (want_out, want_states) = run_metal(case, dtype), case.reference()
    check(out, want_out, 8e-3)
    check(states, want_states)


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("several values to a key", "(head / 3u)", "0u"),
        ("several values to a key", " && first_row + i < 24u", ""),
        ("by channels", "offset < 32", "offset < 16"),
        ("tiled", "slots[end - t] >= 0", "slots[1] >= 0"),
        ("tiled", "remembers &&", ""),
        ("large", "correction * (", "correction * 1.01f * ("),
    ],
)
def test_mistake_is_noticed(name, old, new):
    case = delta_case(name)
    _, text = kernel_text(metal_kernel(case))
    assert old in text, "the mistake must be possible"
    try:
        results = run_metal(case, text=text.replace(old, new))
    except KernelFault:
        return
    assert any(np.max(np.abs(got - want)) > 1e-4 for got, want in zip(results, case.reference(), strict=True))


BUILDS = [*((march, compilers()[0]) for march in marches()), *(("native", other) for other in compilers()[1:])]
CHOSEN = [("native", compilers()[0])]


@pytest.fixture(scope="module", params=few(BUILDS, CHOSEN, whole=True), ids=lambda build: f"{build[0]}-{build[1][-1]}")
def kernels(request):
    threads = (2, 1, 3, 5)[BUILDS.index(request.param) % 4]
    with CpuKernels([cpu_kernel(name) for name in HEADS], threads, *request.param) as built:
        yield built


def run_cpu(kernels, name, inputs, starts, table, states):
    kernel, tokens = cpu_kernel(name), len(inputs["v"])
    given = {port: np.ascontiguousarray(floats(inputs[port])) for port in (*kernel.heads.columns, "rate", "dt_bias")}
    given |= {"b_": given["b"], "out": np.full((tokens + 1, kernel.heads.width), 7, np.float32)}
    arguments = [given[param.name] for param in kernel.params if param.kind != "layer"]
    sequences = Sequences(np.array(starts, np.int32), np.array(table, np.int32), [states], LAYER)
    kernels.run(kernel, arguments, tokens, sequences=sequences)
    assert np.all(given["out"][tokens] == 7)
    return given["out"][:tokens]


@pytest.mark.parametrize("name", HEADS)
def test_cpu(kernels, name):
    case = delta_case(name)
    states, (out, after) = np.array(case.inputs["states"]), case.reference()
    check(run_cpu(kernels, name, case.inputs, case.inputs["query_start"], TABLE, states), out)
    check(states, after)
    untouched = after == np.array(case.inputs["states"])
    np.testing.assert_array_equal(states[untouched], after[untouched])


@pytest.mark.parametrize("name", few(HEADS, ["several values to a key", "tiled", "by channels"]))
def test_cpu_in_any_cut(kernels, name):
    """The bits of one run, token by token, and with the last tokens' states kept on the way."""
    case = delta_case(name)
    ports = tuple(case.heads.columns)
    before, inputs = np.array(case.inputs["states"]), case.inputs | {p: case.inputs[p][1:71] for p in ports}
    whole = before.copy()
    want = run_cpu(kernels, name, inputs, [0, 70], [(1, 2)], whole)
    for cuts in ([0, *range(1, 71)], [0, 33, 34, 70], [0, 60, 70], [0, 69, 70]):
        states, outs, read = before.copy(), [], 1
        for first, last in pairwise(cuts):
            own = inputs | {port: inputs[port][first:last] for port in ports}
            write = 3 if read != 3 else 2
            others = [4, 5, 6, 7, -1, 8][: last - first - 1]
            outs.append(run_cpu(kernels, name, own, [0, last - first], [(read, write, *others)], states))
            read = write
        np.testing.assert_array_equal(np.concatenate(outs), want)
        np.testing.assert_array_equal(states[read][LAYER], whole[2][LAYER])
