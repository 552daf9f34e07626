"""The gated delta rule of prompts by chunks: both kernels against the formula in double precision."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import KernelFault
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.ops.gated_delta import GatedDelta
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.targets.columns import Columns
from mlxr.compiler.targets.metal.kernel_parts.delta_chunk_kernel import CHUNK, has_chunks
from mlxr.compiler.targets.metal.kernels.delta_chunks import DeltaChunksKernel
from mlxr.compiler.targets.metal.kernels.delta_solve import DeltaSolveKernel
from mlxr_tests.delta_cases import LAYER, LAYERS, DeltaCase, by_formula, case_of, delta_spec
from mlxr_tests.few import few
from mlxr_tests.host_pair import HostPair
from mlxr_tests.kernel_bench import kernel_text, run_kernel
from mlxr_tests.specs import compiled, floats
from mlxr_tests.variants import variant

pytestmark = pytest.mark.usefixtures("kernel_host")

SMALL = GatedDelta(4, 2, 64, 16, False, False)
TILED = GatedDelta(6, 3, 64, 48, True, False)
LARGE = GatedDelta(2, 1, 128, 128, False, False)
SEQUENCES = ((1, 130, 3, 64), ((0, 4, -1, -1), (1, 5, 6, -1), (-1, -1, 7, 8), (0, 2, -1, 3)))
"""Lengths and the table of states: of one token, of two chunks and more, of few, and of a chunk."""


def kernels(case: DeltaCase) -> tuple[DeltaSolveKernel, DeltaChunksKernel]:
    places = {
        port: Columns(DType.BF16, case.inputs[port].shape[1], first) for port, (first, _) in case.heads.columns.items()
    }
    assert has_chunks(case.heads, places)
    solve = DeltaSolveKernel("delta_solve", LAYERS, case.heads, tuple((port, places[port]) for port in "qkab"))
    return solve, DeltaChunksKernel("delta_chunks", LAYERS, case.heads, tuple((port, places[port]) for port in "qkv"))


def run(case: DeltaCase, texts: tuple[str | None, str | None] = (None, None)) -> tuple[np.ndarray, np.ndarray]:
    """The result and the states after the batch."""
    (solve, kernel), states = kernels(case), mx.array(np.array(case.inputs["states"]))
    table = np.array(case.table)
    table = np.concatenate([[table.shape[1]], table.reshape(-1)]).astype(np.int32)
    layer, token = (mx.array([number] * 8, dtype=mx.uint32) for number in (LAYER, 6))
    inputs = case.inputs | {"states": states, "state_table": mx.array(table), "layer": layer, "token": token}
    heads, tokens = case.heads.num_heads, case.tokens
    shapes = {
        "corrections": (tokens, heads * CHUNK),
        "answers": (tokens, heads * CHUNK),
        "factors": (tokens, heads * 4),
    }
    grid = (heads, -(-tokens // CHUNK) + len(case.lengths) - 1, 1)
    inputs["dims"] = mx.array([tokens, len(case.lengths)] * 4, dtype=mx.uint32)
    between = run_kernel(solve, inputs, shapes, grid, text=texts[0])
    shapes = {"out": (tokens, case.heads.width), "token_out": (8,)}
    grid = (heads * kernel.splits, len(case.lengths), 1)
    outputs = run_kernel(kernel, inputs | between, shapes, grid, in_place=["states"], text=texts[1])
    assert (np.array(outputs["token_out"]) == 7).all()
    return floats(outputs["out"]), np.array(states)


def errors(case: DeltaCase, texts: tuple[str | None, str | None] = (None, None)) -> tuple[float, float]:
    """The largest errors of the result and of the states, over the largest numbers."""
    (out, states), (want, want_states) = run(case, texts), by_formula(case)
    untouched = want_states == np.array(case.inputs["states"])
    np.testing.assert_array_equal(states[untouched], want_states[untouched])
    both = ((out, want), (states, want_states))
    return tuple(float(np.max(np.abs(got - right)) / np.max(np.abs(right))) for got, right in both)  # type: ignore[return-value]


def check(case: DeltaCase) -> None:
    out, states = errors(case)
    assert out < 4e-3 and states < 3e-5


def case(heads: GatedDelta, lengths: tuple[int, ...], table: tuple[tuple[int, ...], ...], seed: int = 0) -> DeltaCase:
    return case_of(heads, "bf16", seed, lengths, table)


@pytest.mark.long
@pytest.mark.parametrize("heads", few([SMALL, TILED, LARGE], [TILED]))
def test_sequences(heads: GatedDelta) -> None:
    """Several to a step, with states that are kept before the last token, or not at all."""
    check(case(heads, *SEQUENCES))


LENGTHS = [*range(1, 18), 31, 32, 33, 63, 64, 65, 79, 80, 81, 127, 128, 129, 130]


@pytest.mark.parametrize("length", few(LENGTHS, [17, 64, 129]))
def test_lengths(length: int) -> None:
    check(case(SMALL, (length,), ((3, 4),), length))


def test_states_within_chunks() -> None:
    """Each of the last 20 tokens of a sequence leaves its state, or some of them do, on both sides of a chunk's end."""
    table = ((-1, *range(2, 8), *[-1] * 14), (0, -1, *[-1] * 9, 8, 1, *[-1] * 8))
    check(case(SMALL, (69, 70), table))


@pytest.mark.parametrize("decay", ["none", "fast", "both"])
def test_decays(decay: str) -> None:
    """Products of decays that are 1, or far below f32's smallest number; tokens of both kinds in turns."""
    made = case(SMALL, (130,), ((3, 4),))
    numbers = np.array(made.inputs["dt_bias"])
    numbers[:] = {"none": -30.0, "fast": 40.0, "both": -4.0}[decay]
    made.inputs["dt_bias"] = mx.array(numbers)
    made.inputs["rate"] = mx.array(np.full(made.heads.num_heads, -16, np.float32))
    if decay == "both":
        first, count = made.heads.columns["a"]
        a = floats(made.inputs["a"]).copy()
        a[::5, first : first + count] = 60.0
        made.inputs["a"] = made.inputs["b"] = mx.array(a).astype(mx.bfloat16)
    check(made)


def test_deterministic_programs_go_token_by_token() -> None:
    options = {"activation_dtype": "bf16", "weights": {"default": "bf16"}}
    for deterministic in (False, True):
        spec = delta_spec(key_dim=64, value_dim=32, of_model=options | {"deterministic": deterministic})
        labels = {kernel.label for kernel in compiled(spec, Geometry.of(delta_chunk_tokens=8)).plan.first.kernels}
        assert ("delta_chunks" in labels) is not deterministic and "gated_delta" in labels


BANDS = {1: 32, 2: 128, 8: 128, 9: 256, 16: 256, 17: 512, 32: 512, 33: 1024, 64: 1024}
"""The fewest tokens that go by chunks in steps of so many sequences, where 32 of one do."""


@pytest.mark.parametrize(("most", "sequences", "count"), [(16, 4, 1), (500, 8, 4), (500, 64, 7), (2048, 64, 10)])
def test_which_steps_go_by_chunks(most: int, sequences: int, count: int) -> None:
    options = {"activation_dtype": "bf16", "weights": {"default": "bf16"}, "cache": {"max_sequences": sequences}}
    spec = delta_spec(key_dim=64, value_dim=32, of_model={**options, "model__context": 2048, "prefill_chunk": most})
    plan = compiled(spec, Geometry.of(delta_chunk_tokens=32)).plan.first
    labels = {kernel.name: kernel.label for kernel in plan.kernels}
    (phase,) = (phase for phase in plan.phases if phase.name == "prefill")
    kernels = [one for one in phase.launches if not one.needs_library]
    launches = [one for one in kernels if labels[one.kernel] in ("delta_chunks", "gated_delta")]
    for seqs, least in ((seqs, BANDS[seqs]) for seqs in BANDS if seqs <= sequences):
        for tokens in {max(seqs, number) for number in (1, 31, least - 1, least, most)} & set(range(most + 1)):
            ran = [
                labels[one.kernel] for one in launches if one.applies({"tokens": tokens, "seqs": seqs}, library=False)
            ]
            assert ran == ["delta_chunks" if tokens >= least else "gated_delta"], f"{tokens} tokens of {seqs} sequences"
    assert all(launch.when is None or launch.when.minimum <= most for launch in launches), "each can run"
    assert len(launches) == count


def test_steps() -> None:
    """Whole steps against the reference: prompts by chunks after others, in company, forks and undone tokens."""
    pair = HostPair(variant("delta-chunks"))
    first = pair.add()
    pair.step([(first, [i * 7 % 61 for i in range(70)])])
    second, third = pair.fork(first), pair.add()
    pair.step([(first, list(range(9, 40)))])
    pair.step([(first, list(range(30))), (second, [36, 37]), (third, [i * 5 % 61 for i in range(90)])])
    pair.undo(first, [40, 41, 42], 2)
    pair.step([(third, [1]), (first, [43]), (second, [44])])


MISTAKES = [
    ("solve", "(j < i ? 1.0f", "(j <= i ? 1.0f"),
    ("solve", "betas[i] * unit_k[i]", "unit_k[i]"),
    ("solve", "unit_k[j] * decay_x,", "unit_k[j],"),
    ("solve", "-128.0f", "-1.0f"),
    ("solve", "id / 32 * 32; j < top", "id / 32 * 32; j + 4 < top"),
    ("solve", "cut > (int)id", "cut >= (int)id"),
    ("solve", "decay(sums[until - 1] - before)", "decay(sums[until - 1])"),
    ("solve", "(int)(top + i) < count", "true"),
    ("chunks", "until = slots[end - t] >= 0 ? t + 1 : until;", ""),
    ("chunks", "at >= from ? fma(scales[n].x, sums[n].x", "true ? fma(scales[n].x, sums[n].x"),
    ("chunks", "at < until ? end_of.x : 0.0f", "end_of.x"),
    ("chunks", "    threadgroup_barrier(mem_flags::mem_threadgroup);\n", ""),
    ("chunks", "state[i] = state[i] * decay", "state[i] = state[i]"),
    ("chunks", "uint n = 2 * m", "uint n = 2 * m + 1"),
    ("chunks", "upper_halves(keys[0][j], keys[1][j])", "upper_halves(keys[1][j], keys[0][j])"),
    ("chunks", "at + 1 >= from && at + 1 < until", "true"),
]


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(("kernel", "old", "new"), MISTAKES)
def test_mistake_is_noticed(kernel: str, old: str, new: str) -> None:
    made = case(SMALL, (70, 5, 69), ((-1, 2, -1, 3, *[-1] * 9, 4), (0, 5, 6, *[-1] * 11), (1, 7, *[-1] * 12)))
    own = [kernel_text(one)[1] for one in kernels(made)]
    changed = own[["solve", "chunks"].index(kernel)].replace(old, new)
    assert changed not in own, "the mistake must be possible"
    texts = (changed, None) if kernel == "solve" else (None, changed)
    try:
        found = errors(made, texts)
    except (KernelFault, AssertionError):  # states that no sequence writes have changed
        return
    assert not max(found) < 1e-2, "it was not noticed"
