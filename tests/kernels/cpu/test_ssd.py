"""The scan of Mamba-2 in C, against the reference."""

import numpy as np
import pytest

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.ops.mamba2 import ConvSsd
from mlxr.compiler.targets.columns import Columns
from mlxr.compiler.targets.cpu.kernels.ssd import CpuConvolution, CpuSsd
from mlxr_tests.c_harness import compilers, marches
from mlxr_tests.cpu_kernels import CpuKernels, Sequences
from mlxr_tests.few import few
from mlxr_tests.ssd_cases import LAYER, LAYERS, SHAPES, SsdCase, conv_case, ssd_case

ERROR = 5e-6
PROMPTS = (3, 1, 70)
BUILDS = [*((march, compilers()[0]) for march in marches()), *(("native", other) for other in compilers()[1:])]


def kernel_of(case: SsdCase) -> CpuSsd:
    attrs, conv = case.attrs, None
    bound = {port: first for port, (first, _) in attrs.columns.items() if port in case.inputs}
    columns = {port: Columns(DType.F32, case.inputs[port].shape[1], first) for port, first in bound.items()}
    if isinstance(attrs, ConvSsd):
        has_bias, most = "bias" in case.inputs, len(case.state_table)
        conv = CpuConvolution(1, attrs.channels, attrs.taps, has_bias, columns["x"], most)
        firsts = {"x": 0, "b": attrs.width, "c": attrs.width + attrs.shared_width}
        columns |= {port: Columns(DType.F32, attrs.channels, first) for port, first in firsts.items()}
    return CpuSsd("ssd", store=0, num_layers=LAYERS, heads=attrs, conv=conv, **columns)


def launched(library: CpuKernels, case: SsdCase) -> tuple[np.ndarray, ...]:
    """The results, and the states after the batch."""
    kernel, stores = kernel_of(case), [case.states.copy()]
    if case.conv_states is not None:
        stores.append(case.conv_states.copy())
    tokens = len(case.inputs["x"])
    out = np.full((tokens, case.attrs.width), np.nan, np.float32)
    names = {"bb": "b", "cc": "c", "input": "x"}
    ports = [param.name for param in kernel.params if param.kind in ("input", "vector")]
    values = [case.inputs[names.get(port, port)] for port in ports]
    sequences = Sequences(case.query_start, case.state_table, stores, LAYER)
    library.run(kernel, [*values, out], tokens, sequences=sequences)
    return out, *stores


def close(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether numbers are as near as f32 can have them, by the largest of them."""
    return bool(np.abs(got - want).max() <= ERROR * np.abs(want).max())


@pytest.mark.parametrize(("march", "compiler"), few(BUILDS, [BUILDS[-1]]))
def test_kernel(march: str, compiler: tuple[str, ...]) -> None:
    cases = [ssd_case(shape, PROMPTS, columns=3, joined=shape == "uneven") for shape in SHAPES]
    cases += [ssd_case(shape, (1, 1), joined=shape == "uneven") for shape in SHAPES]
    cases += [conv_case(shape, 3) for shape in SHAPES] + [conv_case("small", 2, 2, bias=False)]
    kernels = list(dict.fromkeys(kernel_of(case) for case in cases))
    with CpuKernels(kernels, 3, march, compiler) as library:
        for case in cases:
            for got, want in zip(launched(library, case), case.reference(), strict=True):
                assert close(got, want)


def test_cuts_leave_the_same_bits() -> None:
    """A prompt in one piece, and cut where blocks of tokens end elsewhere."""
    whole = ssd_case("one group", (41,))
    with CpuKernels([kernel_of(whole)], 2) as library:
        out, states = launched(library, whole)
        now, slot, parts = whole.states, -1, []
        for begin, end in ((0, 7), (7, 8), (8, 41)):
            table = np.array([[slot, whole.state_table[0, 1] if end == 41 else end % 5]], np.int32)
            inputs = {p: v[begin:end] if len(v) == 41 else v for p, v in whole.inputs.items()}
            part = SsdCase(whole.attrs, inputs, np.array([0, end - begin], np.int32), table, now)
            got, now = launched(library, part)
            slot = int(table[0, 1])
            parts.append(got)
    assert (np.concatenate(parts) == out).all()
    assert (now[slot, LAYER] == states[slot, LAYER]).all()
