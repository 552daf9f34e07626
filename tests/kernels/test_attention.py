"""Attention kernels, each op alone: decode with its cache write, and cache write plus attention for prefill."""

import dataclasses

import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.attention_cases import CASES, EXTRA_CASES, Q4_CASES, VALUE_CASES, Case
from mlxr_tests.few import covering, few
from mlxr_tests.op_bench import OpBench
from mlxr_tests.specs import compiled
from mlxr_tests.tolerances import SUM_ERROR

pytestmark = pytest.mark.usefixtures("kernel_host")

DECODE = ["layers.1.attention.attended"]
# Every third of the variants in q8, which are all the head dims, layouts and modes.
Q8_CASES = [dataclasses.replace(case, cache="q8") for case in CASES[1::3]]
EVERY = CASES + Q8_CASES + EXTRA_CASES + VALUE_CASES + Q4_CASES
PREFILL = ["layers.1.attention.cache_write", "layers.1.attention.attended"]


def properties(case):
    """What changes a text by more than a number."""
    near = case.window and case.window < 3
    return (
        case.cache,
        case.activation,
        case.layout,
        case.mode,
        case.block_size > 1,
        near,
        case.rope,
        case.extras,
        case.v_dim is not None,
    )


def decode(bench, *histories):
    """One new token for sequences that have this many."""
    seq_ids = bench.sequences(*histories)
    bench.run("decode", DECODE, bench.batch([(s, 1) for s in seq_ids]))
    bench.clear(seq_ids)


def prefill(bench, *parts):
    """Some new tokens for sequences that have this many: (history, new)."""
    seq_ids = bench.sequences(*(history for history, _ in parts))
    bench.run("prefill", PREFILL, bench.batch([(s, new) for s, (_, new) in zip(seq_ids, parts, strict=True)]))
    bench.clear(seq_ids)


def borders(case):
    """Histories around the borders of blocks and windows, and the longest."""
    block, window = case.block_size, case.window or 1
    around = {n + d for n in (0, block, 2 * block, window, 32, 128) for d in (-2, -1, 0, 1)}
    return sorted(n for n in around | {case.context - 1} if 0 <= n < case.context)


COVERING = covering(EVERY, properties)
"""The first has most; each phase has every other one of the rest."""


@pytest.mark.parametrize("case", few(EVERY, COVERING[::2]), ids=str)
def test_decode(case):
    bench = OpBench(compiled(case.spec))
    lengths = borders(case)
    num_seqs = bench.plan.arena.max_sequences
    # Short next to long: neighbours in a batch are far apart in the list.
    order = sorted(range(len(lengths)), key=lambda i: (i % -(-len(lengths) // num_seqs), i))
    for start in range(0, len(order), num_seqs):
        decode(bench, *(lengths[i] for i in order[start : start + num_seqs]))


@pytest.mark.parametrize("case", few(EVERY, COVERING[1::2]), ids=str)
def test_prefill(case):
    bench = OpBench(compiled(case.spec))
    tile, block = bench.plan.query_tile, case.block_size
    chunks = [(0, 1), (0, tile), (0, tile + 1), (5, 2 * tile + 1), (block, block), (100, 20), (case.context - 33, 33)]
    if tile > 1:
        chunks.append((0, tile - 1))
    for history, new in chunks:
        prefill(bench, (history, min(new, 64)))
    if bench.plan.arena.max_sequences >= 3:
        prefill(bench, (block - 1, 1), (0, min(tile + 1, 30)), (2 * block + 3, 7))
        prefill(bench, (0, 3), (77, 1), (case.context - 2, 2))


@pytest.mark.long
def test_cases_cover_the_matrix():
    """The pairwise choice still names every value."""
    wanted = {
        "head_dim": {32, 40, 64, 80, 96, 128, 256},
        "cache": {"f32", "f16", "bf16"},
        "activation": {"f32", "f16", "bf16"},
        "layout": {"block", "layer"},
        "mode": {"paged", "contiguous"},
        "block_size": {1, 4, 16, 32},
        "rope": {"half", "interleaved", "half-of-it", "interleaved-quarter", "linear", "llama3"},
    }
    for name, values in wanted.items():
        assert values <= {getattr(case, name) for case in CASES}, name
    assert {1, 2, 4, 7, 8} <= {case.heads // case.kv_heads for case in CASES}
    assert any(case.window is None for case in CASES) and any(case.window == 1 for case in CASES)
    assert any(case.window and 1 < case.window < case.context for case in CASES)
    keys = {
        k.threadgroup_bytes for case in CASES for k in compiled(case.spec).plan.first.kernels if "prefill" in k.label
    }
    assert max(keys) <= 32768
    tiles = {compiled(case.spec).plan.query_tile for case in CASES}
    assert len(tiles) >= 4, f"only tiles of {tiles} query tokens"


@pytest.mark.parametrize("scaling", few(["llama3", "half"], ["llama3"]))
def test_far_positions(scaling):
    """Angles of thousands of radians, whose sines lose a bit, and the partition that specs have by default."""
    case = Case(4, 2, 32, "f16", "f32", "block", "paged", 16, None, scaling, context=2600, max_sequences=2)
    bench = OpBench(compiled(case.spec), sum_error=2 * SUM_ERROR)
    assert bench.plan.whole_context == 1024
    decode(bench, 2599, 1023)
    decode(bench, 1023, 1024)
    decode(bench, 1023, 3)
    prefill(bench, (2570, 30), (1020, 5))


@pytest.mark.parametrize("scale", [200.0, 1e-20], ids=["sharp", "flat"])
@pytest.mark.parametrize("case", few(CASES[:2], CASES[1:2]), ids=str)
def test_sizes_of_scores(case, scale):
    """Scores of hundreds overflow exp2 unless the maximum is taken off; scores of nothing average."""
    bench = OpBench(compiled(case.spec, Geometry.of(partition=32)), scale=scale, sum_error=2e-3)
    decode(bench, 30, 12, 0)
    decode(bench, 169, 3, 64)
    prefill(bench, (100, 40), (0, 20), (7, 1))
