"""Short convolutions: the reference against the formula, the kernels of both targets against the reference."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import KernelFault
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.ops.causal_conv import CausalConv
from mlxr.compiler.targets.cpu.kernels.causal_conv import CpuCausalConv
from mlxr.compiler.targets.metal.kernels.causal_conv import CausalConvKernel
from mlxr.runtime.hosts.batch import query_tiles_of
from mlxr_tests.conv_cases import LAYER, LAYERS, SHAPES, ConvCase, conv_case
from mlxr_tests.cpu_kernels import CpuKernels, Sequences
from mlxr_tests.kernel_bench import kernel_text, run_kernel

pytestmark = pytest.mark.usefixtures("kernel_host")

PROMPTS, TILE, PADDING = (3, 1, 37), 8, 5


def check(got: tuple[np.ndarray, np.ndarray], want: tuple[np.ndarray, np.ndarray]) -> None:
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)


def fields_of(case: ConvCase) -> dict:
    attrs = case.attrs
    alone = attrs if isinstance(attrs, CausalConv) else None
    return {
        "label": attrs.name,
        "num_layers": LAYERS,
        "channels": case.channels,
        "taps": attrs.taps,
        "width": case.inputs["x"].shape[1],
        "first": alone.first if alone else 0,
        "gated": alone is None,
        "silu": alone is not None and alone.activation == "silu",
        "bias": "bias" in case.inputs,
    }


def launched(case: ConvCase, *, tiled: bool, text: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The results and states of Metal's kernel; in tiles, of several sequences with padding tokens, which become 0."""
    kernel = CausalConvKernel(**fields_of(case), tiled=tiled, activation=DType.F32)
    states, count = mx.array(case.states), len(case.inputs["x"])
    table = np.concatenate([[case.state_table.shape[1]], case.state_table.reshape(-1)]).astype(np.int32)
    inputs = {port: mx.array(value) for port, value in case.inputs.items()} | {
        "query_start": mx.array(case.query_start),
        "state_table": mx.array(table),
        "layer": mx.array([LAYER] + [0] * 7, dtype=mx.uint32),
        "conv_states": states,
        "token": mx.full(8, 6, dtype=mx.uint32),
    }
    tiles, padding = query_tiles_of(case.query_start, TILE), PADDING if tiled and len(case.state_table) > 1 else 0
    if tiled:
        inputs["query_tiles"] = mx.array(tiles)
    if padding:
        tiles = np.concatenate([tiles, [[-1 - padding, count]]]).astype(np.int32)
        more = np.full((padding, case.inputs["x"].shape[1]), np.nan, np.float32)
        inputs |= {"query_tiles": mx.array(tiles), "x": mx.array(np.concatenate([case.inputs["x"], more]))}
    shapes = {"out": (count + padding, case.channels), "token_out": (8,)}
    grid = (-(-case.channels // kernel.threads), len(tiles if tiled else case.state_table), 1)
    outputs = run_kernel(kernel, inputs, shapes, grid, text=text, in_place=("conv_states",))
    assert (np.array(outputs["token_out"]) == 7).all()
    out = np.array(outputs["out"])
    assert (out[count:] == 0).all()
    return out[:count], np.array(states)


@pytest.mark.parametrize("shape", SHAPES)
def test_reference(shape: str) -> None:
    case = conv_case(shape, PROMPTS, columns=4)
    check(case.reference(), case.formula())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_metal(shape: str, phase: str) -> None:
    case = conv_case(shape, PROMPTS if phase == "prefill" else (1, 1), columns=4 if phase == "prefill" else 2)
    check(launched(case, tiled=phase == "prefill"), case.reference())


def test_cuts_leave_the_same_bits() -> None:
    """A prompt in one piece, and cut where tiles end elsewhere."""
    whole = conv_case("gated", (21,))
    out, states = launched(whole, tiled=True)
    now, slot, parts = whole.states, -1, []
    last = int(whole.state_table[0, 1])
    for begin, end, tiled in ((0, 7, True), (7, 20, True), (20, 21, False)):
        to = last if end == 21 else next(s for s in (1, 2, 3) if s not in (slot, last))
        got, now = launched(whole.part(begin, end, (slot, to), now), tiled=tiled)
        slot, parts = to, [*parts, got]
    assert (np.concatenate(parts) == out).all()
    assert (now[last, LAYER] == states[last, LAYER]).all()


@pytest.fixture(scope="module")
def library():
    kernels = [CpuCausalConv(store=0, **fields_of(conv_case(shape, (1,)))) for shape in SHAPES]
    with CpuKernels(kernels, 3) as built:
        yield built


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_cpu(library: CpuKernels, shape: str, phase: str) -> None:
    case = conv_case(shape, PROMPTS if phase == "prefill" else (1, 1), columns=4 if phase == "prefill" else 2)
    kernel, states = CpuCausalConv(store=0, **fields_of(case)), case.states.copy()
    out = np.full((len(case.inputs["x"]), case.channels), np.nan, np.float32)
    values = [case.inputs[param.name] for param in kernel.params if param.kind in ("input", "vector")]
    sequences = Sequences(case.query_start, case.state_table, [states], LAYER)
    library.run(kernel, [*values, out], len(out), sequences=sequences)
    check((out, states), case.reference())


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("? input_of(x, (ulong)t, channel)", "? 0.0f"),
        ("const int left = end - t;", "const int left = last - t;"),
        ("(uint)(t - begin + 2)", "(uint)(t - begin + 1)"),
        ("< first - 1 - of_tile", "< first"),
    ],
)
def test_mistake_is_noticed(old: str, new: str) -> None:
    case = conv_case("gated", PROMPTS, columns=4)
    _, text = kernel_text(CausalConvKernel(**fields_of(case), tiled=True, activation=DType.F32))
    assert old in text, "the mistake must be possible"
    with pytest.raises((AssertionError, KernelFault)):
        check(launched(case, tiled=True, text=text.replace(old, new)), case.reference())
