"""The scan of Mamba-2: the reference against the formula, and Metal's kernels against both."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.targets.columns import Columns
from mlxr.compiler.targets.metal.kernels.ssd import Convolution, SsdKernel, most_tokens
from mlxr_tests.few import few
from mlxr_tests.kernel_bench import run_kernel
from mlxr_tests.ssd_cases import LAYER, LAYERS, SHAPES, SsdCase, conv_case, conv_formula, ssd_case

pytestmark = pytest.mark.usefixtures("kernel_host")

ERROR = 5e-6
PROMPTS = (3, 1, 70)
CONVOLUTIONS = [*((shape, 4) for shape in SHAPES), ("small", 2)]


def close(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether numbers are as near as f32 can have them, by the largest of them."""
    return bool(np.abs(got - want).max() <= ERROR * np.abs(want).max())


def kernel_of(case: SsdCase, tile: int) -> SsdKernel:
    def columns(port: str) -> Columns:
        return Columns(DType.F32, case.inputs[port].shape[1], case.attrs.columns[port][0])

    of_tokens = {port: columns(port) if port in case.inputs else None for port in ("x", "b", "c", "dt")}
    gate = columns("gate") if "gate" in case.inputs else None
    conv = None
    if case.conv_states is not None:
        taps = case.attrs.taps
        conv = Convolution(len(case.inputs["weight"]) // taps, taps, "bias" in case.inputs)
    return SsdKernel("ssd", LAYERS, case.attrs, gate=gate, tile=tile, conv=conv, **of_tokens)


def launched(case: SsdCase, tile: int) -> tuple[np.ndarray, ...]:
    """The results, and the states after the batch."""
    kernel, stores = kernel_of(case, tile), {"states": mx.array(case.states)}
    if case.conv_states is not None:
        stores["conv_states"] = mx.array(case.conv_states)
    table = np.concatenate([[case.state_table.shape[1]], case.state_table.reshape(-1)]).astype(np.int32)
    inputs = {port: mx.array(value) for port, value in case.inputs.items()} | {
        "query_start": mx.array(case.query_start),
        "state_table": mx.array(table),
        "layer": mx.array([LAYER] + [0] * 7, dtype=mx.uint32),
        **stores,
        "token": mx.full(8, 6, dtype=mx.uint32),
    }
    shapes = {"out": (len(case.inputs["x"]), case.attrs.width), "token_out": (8,)}
    grid = (kernel.heads.num_heads * kernel.splits, len(case.state_table), 1)
    outputs = run_kernel(kernel, inputs, shapes, grid, in_place=stores)
    assert (np.array(outputs["token_out"]) == 7).all()
    return np.array(outputs["out"]), *(np.array(store) for store in stores.values())


@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_reference_is_the_formula(shape: str) -> None:
    case = ssd_case(shape, PROMPTS, columns=3, joined=shape == "uneven")
    for got, want in zip(case.reference(), case.formula(), strict=True):
        assert close(got, want)


@pytest.mark.parametrize("shape", few(list(SHAPES), ["groups", "uneven", "small"]))
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_kernel(shape: str, phase: str) -> None:
    counts = PROMPTS if phase == "prefill" else (1, 1)
    case = ssd_case(shape, counts, columns=3 if phase == "prefill" else 2, joined=shape == "uneven")
    tile = most_tokens(case.attrs.state_dim) if phase == "prefill" else 1
    for got, want in zip(launched(case, tile), case.reference(), strict=True):
        assert close(got, want)


@pytest.mark.parametrize(("shape", "taps"), few(CONVOLUTIONS, [CONVOLUTIONS[0], CONVOLUTIONS[1], CONVOLUTIONS[-1]]))
def test_kernel_with_a_convolution(shape: str, taps: int) -> None:
    case = conv_case(shape, 3, taps, bias=taps > 2)
    reference = case.reference()
    assert close(reference[0], conv_formula(case))
    for got, want in zip(launched(case, 1), reference, strict=True):
        assert close(got, want)


def test_cuts_leave_the_same_bits() -> None:
    """A prompt in one piece, and cut where tiles end elsewhere, by the kernel of prompts and by that of decode."""
    whole = ssd_case("groups", (21,))
    out, states = launched(whole, 16)
    now, slot, parts = whole.states, -1, []
    for begin, end, tile in ((0, 7, 16), (7, 20, 8), (20, 21, 1)):
        table = np.array([[slot, whole.state_table[0, 1] if end == 21 else (end % 5)]], np.int32)
        inputs = {p: v[begin:end] if p in ("x", "b", "c", "dt") else v for p, v in whole.inputs.items()}
        part = SsdCase(whole.attrs, inputs, np.array([0, end - begin], np.int32), table, now)
        got, now = launched(part, tile)
        slot = int(table[0, 1])
        parts.append(got)
    assert (np.concatenate(parts) == out).all()
    assert (now[slot, LAYER] == states[slot, LAYER]).all()
