"""The C kernels of RoPE, the KV cache and attention against the reference, in every variant and instruction set."""

import dataclasses
import itertools

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import DType
from mlxr.runtime.arrays.mlx_arrays import as_bits
from mlxr.runtime.cache.arena_blocks import copy_blocks
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.mlx_ops.cache_rows import decode_rows, encode_rows
from mlxr_tests.arenas import copy_arena, snapshot, write_slots
from mlxr_tests.attention_cases import CASES, EXTRA_CASES, Q4_CASES, VALUE_CASES, Case
from mlxr_tests.c_harness import aligned, check_cross_compiles, compilers, marches
from mlxr_tests.cpu_attention import (
    FAST_ERROR,
    HEADERS,
    LAYER,
    AttentionBench,
    decode_attention,
    kernels_of,
    text_of_kernels,
)
from mlxr_tests.few import covering, few
from mlxr_tests.tolerances import SUM_ERROR, Mismatch

# Ratios and head dims that do not fill vectors, one with matrix tiles in place, and every cache.
CHOSEN = [
    Case(6, 3, 40, "bf16", layout="layer", block_size=1, rope="half-of-it"),
    Case(14, 2, 64, "bf16", block_size=16, window=70),
    Case(3, 1, 104, "f16", block_size=2, rope="interleaved"),
    Case(20, 1, 72, "q8", layout="layer", mode="contiguous", block_size=4, window=33, rope="interleaved-quarter"),
    Case(5, 5, 32, "f32", block_size=32, window=1),
    Case(14, 2, 64, "q8", block_size=16, window=70, rope="yarn-half-of-it", extras="everything"),
    Case(14, 2, 96, "q4", block_size=16, window=70, rope="interleaved"),
]
UNGATED = [case for case in CASES + EXTRA_CASES + VALUE_CASES + Q4_CASES if "gate" not in case.extras]
"""Gates are tested in whole steps (test_families.py)."""
BUILDS = [(march, compiler) for compiler in compilers() for march in marches()]
CHOSEN_BUILDS = [(case, *build) for build in BUILDS for case in CHOSEN]
DIAGONAL = CHOSEN_BUILDS[:: len(CHOSEN) + 1]


def properties(case):
    """What changes the text by more than a number."""
    near = case.window and case.window < 3
    return case.cache, case.layout, case.mode, case.block_size > 1, near, case.rope, case.extras, case.v_dim is None


def around(case, *places):
    """Histories a little below and above some lengths."""
    near = {n + d for n in places for d in (-2, -1, 0, 1)}
    return sorted(n for n in near | {case.context - 1} if 0 <= n < case.context)


def decode_batches(bench):
    """Histories around the borders of blocks, windows, vectors and tiles; short next to long."""
    case, most = bench.case, bench.plan.arena.max_sequences
    lengths = around(case, 0, case.block_size, 2 * case.block_size, case.window or 1, 16, 32, 64, 128)
    batches = -(-len(lengths) // most)
    return [[(n, 1) for n in lengths[i::batches]] for i in range(batches)]


def prefill_batches(bench):
    """Chunks around the borders of query tiles, with and without history; and mixed ones."""
    case, tile, context = bench.case, bench.kernels["attend_prefill"].tile_tokens, bench.case.context
    chunks = [(0, 1), (0, tile - 1), (0, tile), (0, tile + 1), (5, 2 * tile + 1), (case.block_size, 17), (100, 20)]
    chunks.append((context - 33, 33))
    batches = [[(history, max(1, min(new, 64, context - history)))] for history, new in chunks]
    if bench.plan.arena.max_sequences >= 3:
        batches += [[(3, 1), (0, min(tile + 1, 30)), (11, 7)], [(0, 3), (77, 1), (context - 2, 2)]]
    return batches


def check_all(bench, threads):
    for batch in decode_batches(bench):
        bench.run(batch, next(threads), "decode")
    for batch in prefill_batches(bench):
        bench.run(batch, next(threads), "prefill")


@pytest.mark.parametrize("case", few(UNGATED, covering(UNGATED, properties)[::2]), ids=str)
def test_every_variant(case):
    check_all(AttentionBench(case), itertools.cycle((1, 2, 3, 5)))


@pytest.mark.parametrize("case", few(CASES[::3], CASES[:1]), ids=str)
def test_q8_caches(case):
    check_all(AttentionBench(dataclasses.replace(case, cache="q8")), itertools.cycle((2, 1, 3)))


@pytest.mark.parametrize(
    ("case", "march", "compiler"),
    few(CHOSEN_BUILDS, DIAGONAL[:2]),
    ids=[f"{case}-{march}-{compiler[-1]}" for case, march, compiler in CHOSEN_BUILDS],
)
def test_instruction_sets(case, march, compiler):
    # Without matrix tiles fast is exact.
    for compute in ("exact", "fast") if march == "native" else ("exact",):
        check_all(AttentionBench(case, compute, march, compiler), itertools.cycle((2, 1, 3)))


@pytest.mark.parametrize("cache", few(["bf16", "f16", "q8"], ["q8"]))
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), few([(8, 2, 64), (9, 1, 128), (24, 1, 40), (7, 1, 256)], [(24, 1, 40)])
)
def test_fast_variants(cache, heads, kv_heads, head_dim):
    """Where there are matrix tiles: ratios of one and of several of their columns, and steps of their depth."""
    case = Case(heads, kv_heads, head_dim, cache, block_size=16, window=101, context=300)
    check_all(AttentionBench(case, "fast"), itertools.cycle((1, 3, 2)))


@pytest.mark.parametrize("cache", few(["bf16", "f16", "q8"], ["bf16", "q8"]))
@pytest.mark.parametrize(("head_dim", "v_dim"), few([(64, 128), (192, 128), (96, 40)], [(192, 128)]))
def test_fast_values_of_another_size(head_dim, v_dim, cache):
    """Values longer and shorter than keys in matrix tiles, and in the vectors that share keys."""
    case = Case(8, 2, head_dim, cache, block_size=16, window=101, context=300, v_dim=v_dim)
    check_all(AttentionBench(case, "fast"), itertools.cycle((1, 3, 2)))


@pytest.mark.parametrize("cache", few(["bf16", "f16", "q8"], ["f16"]))
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    few([(8, 2, 64), (24, 1, 40), (20, 1, 256), (2, 2, 32)], [(24, 1, 40), (2, 2, 32)]),
)
def test_fast_by_dot_products(heads, kv_heads, head_dim, cache):
    """Where there are dot products of bf16: values turned (long rows) and not, one and two vectors of columns."""
    case = Case(heads, kv_heads, head_dim, cache, block_size=16, window=101, context=300)
    march = "bf16" if "bf16" in marches() else "native"
    check_all(AttentionBench(case, "fast", march, dots=True), itertools.cycle((1, 3, 2)))


@pytest.mark.parametrize("cache", few(["bf16", "q8"], ["bf16"]))
@pytest.mark.parametrize("extras", few(["softcap", "sinks", "everything"], ["everything"]))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), few([(8, 2, 64), (24, 1, 40)], [(8, 2, 64)]))
def test_fast_extras(extras, cache, heads, kv_heads, head_dim):
    """Caps, sinks and growing queries in matrix tiles."""
    case = Case(heads, kv_heads, head_dim, cache, block_size=16, window=101, context=300, extras=extras)
    check_all(AttentionBench(case, "fast"), itertools.cycle((1, 3, 2)))


@pytest.mark.parametrize(
    ("compute", "extras"), few(itertools.product(("exact", "fast"), ("", "sinks")), [("exact", "sinks")])
)
def test_threads_share_long_contexts(compute, extras):
    """More threads than heads, sequences that begin or end within a thread's share, and threads without a sequence."""
    case = Case(8, 2, 64, "bf16", block_size=16, context=2100, max_sequences=4, extras=extras)
    bench = AttentionBench(case, compute)
    for threads in (1, 2, 3, 7, 16):
        bench.run([(2099, 1)], threads, "decode")
        bench.run([(3, 1), (1500, 1), (0, 1), (700, 1)], threads, "decode")
        bench.run([(1023, 1), (1024, 1), (1025, 1)], threads, "decode")
    bench.run([(2050, 40), (1200, 1), (0, 64)], 3, "prefill")


@pytest.mark.parametrize("compute", ["exact", "fast"])
@pytest.mark.parametrize("scale", [200.0, 1e-20], ids=["sharp", "flat"])
@pytest.mark.parametrize("case", few([CHOSEN[1], CHOSEN[4]], CHOSEN[1:2]), ids=str)
def test_sizes_of_scores(case, scale, compute):
    """Scores of thousands overflow unless the maximum is taken off; scores of nothing average."""
    if compute == "fast" and scale > 1:
        pytest.skip("which of two large scores is the larger is a matter of rounding")
    error = 2e-3 if scale > 1 else None
    bench = AttentionBench(case, compute, scale=scale, sum_error=error)
    for batch in ([(30, 1), (12, 1), (0, 1)], [(169, 1), (3, 1), (64, 1)]):
        bench.run(batch, 2, "decode")
    bench.run([(100, 40), (0, 20), (7, 1)], 2, "prefill")


@pytest.mark.parametrize("scaling", few(["llama3", "half"], ["llama3"]))
def test_far_positions(scaling):
    """Angles of thousands of radians."""
    case = Case(4, 2, 32, "f16", block_size=16, rope=scaling, context=2600, max_sequences=2)
    bench = AttentionBench(case)
    bench.run([(2599, 1), (1023, 1)], 2, "decode")
    bench.run([(2570, 30), (1020, 5)], 2, "prefill")


def tokens_after(bench, history, new):
    """A step of new tokens of a new sequence."""
    seq_id = bench.pager.add_sequence()
    if history:
        bench.pager.append(seq_id, history)
    request = BatchRequest(seq_id, [1] * new, history)
    return Batch.build([request], bench.pager, bench.plan.query_tile)


def test_rope_table_is_that_of_double_precision():
    bench = AttentionBench(CHOSEN[0])
    batch = tokens_after(bench, 100, 40)
    table, nothing = aligned((40, 2 * len(bench.frequencies)), np.float32), aligned((1, 1), np.float32)
    angles = np.arange(100, 140, dtype=np.float32)[:, None] * bench.frequencies
    assert angles.dtype == np.float32
    want = [function(angles.astype(np.float64)).astype(np.float32) for function in (np.cos, np.sin)]
    for threads in (1, 3):
        table[...] = np.nan
        bench.launch("rope_table", batch, threads, nothing, table, nothing)
        np.testing.assert_array_equal(table, np.concatenate(want, axis=1))


SUBNORMAL = 2.0**-149
SPECIAL_ROWS = {
    "zeros": [0.0],
    "halves": [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5],
    "largest": [3e38, -1e38, 1e-3],
    "subnormal scale": [190 * SUBNORMAL, -190 * SUBNORMAL, 3 * SUBNORMAL],
    "no scale": [60 * SUBNORMAL, -3 * SUBNORMAL],
    "infinite": [1.0, np.inf, 3.0],
    "not a number": [1.0, np.nan, 3.0],
}


STORED = [("f16", 40), ("bf16", 40), ("q8", 40), ("q8", 64), ("f32", 40), ("q4", 96)]
STORED_BUILDS = [(*stored, march) for march in marches() for stored in STORED]
SHORT_STORED = [STORED_BUILDS[1], STORED_BUILDS[-3], STORED_BUILDS[-1]]


@pytest.mark.parametrize(("cache", "head_dim", "march"), few(STORED_BUILDS, SHORT_STORED))
def test_values_are_stored_as_the_reference_stores_them(cache, head_dim, march):
    bench = AttentionBench(Case(2, 1, head_dim, cache, block_size=4, max_sequences=1), march=march)
    rows = np.random.default_rng(0).standard_normal((len(SPECIAL_ROWS) + 20, head_dim), dtype=np.float32)
    for row, numbers in zip(rows, SPECIAL_ROWS.values(), strict=False):
        row[:] = 0
        row[-len(numbers) :] = numbers
    batch = tokens_after(bench, 3, len(rows))
    qkv = aligned((len(rows), 4 * head_dim), np.float32)
    qkv[:, 3 * head_dim :] = rows
    table = aligned((len(rows), 2 * len(bench.frequencies)), np.float32)
    bench.launch("cache_write", batch, 2, qkv, table, table)
    with np.errstate(invalid="ignore"):
        want = encode_rows(mx.array(rows), cache)
    got = snapshot(bench.arena)["v_arena"][LAYER, batch.slots, 0]
    numbers_end = -4 if cache == "q8" else None
    is_nan = np.isnan(rows).any(axis=-1) | (~np.isfinite(rows).all(axis=-1) & (cache in ("q8", "q4")))
    np.testing.assert_array_equal(got[~is_nan], want[~is_nan])
    if cache == "q8":
        assert (got[is_nan][:, :numbers_end] == 0).all()
        assert np.isnan(np.ascontiguousarray(got[is_nan][:, -4:]).view(np.float32)).all()
    if cache == "q4":
        found, wanted = (np.isnan(np.array(decode_rows(rows[is_nan], cache))) for rows in (got, want))
        assert wanted.any(axis=-1).all() and (found == wanted).all()


COPIED = itertools.product([("f32", 4, 40), ("bf16", 1, 32), ("q8", 16, 56), ("q4", 4, 96)], ["block", "layer"])


@pytest.mark.parametrize(
    ("cache", "block_size", "head_dim", "layout"),
    few([(*case, layout) for case, layout in COPIED], [("q8", 16, 56, "block")]),
)
def test_copy_blocks(cache, block_size, head_dim, layout):
    bench = AttentionBench(Case(4, 2, head_dim, cache, layout=layout, block_size=block_size))
    g = bench.plan.arena
    write_slots(bench.arena, range(g.num_blocks * block_size), np.random.default_rng(0))
    copy_arena(bench.arena, bench.reference)
    last = g.num_blocks - 1
    for pairs in ([(1, 0)], [(0, last), (2, 1), (last - 1, 3)]):
        bench.copy_blocks(pairs)
        copy_blocks(bench.reference, pairs)
        for array, want in (
            (bench.arena.stores["k_arena"], bench.reference.stores["k_arena"]),
            (bench.arena.stores["v_arena"], bench.reference.stores["v_arena"]),
        ):
            np.testing.assert_array_equal(as_bits(array), as_bits(want))


@pytest.mark.long
@pytest.mark.parametrize("cpu", ["generic", "apple_m1"])
@pytest.mark.parametrize("case", [*CHOSEN[1:4], CHOSEN[5]], ids=str)
def test_compiles_for_arm(case, cpu):
    artifact, attrs, has_sinks, frequencies = decode_attention(case)
    kernels = kernels_of(artifact.plan.arena, attrs, frequencies.tolist(), "fast", sinks=has_sinks)
    used = ", ".join(kernels)
    code = f"{text_of_kernels(kernels)}\nvoid *all_of_them[] = {{{used}}};\n"
    check_cross_compiles(HEADERS, code, "aarch64-linux-gnu", cpu)


@pytest.mark.parametrize("lie", [-1, 1])
def test_a_kernel_that_sees_other_keys_is_noticed(monkeypatch, lie):
    """The harness's own test: a key too few, a key too many."""
    bench = AttentionBench(CHOSEN[1])
    launch = bench.launch

    def lying(kernel, batch, *arguments):
        if kernel == "attend_decode":
            batch = dataclasses.replace(batch, context_lens=batch.context_lens + np.int32(lie))
        launch(kernel, batch, *arguments)

    monkeypatch.setattr(bench, "launch", lying)
    with pytest.raises(Mismatch):
        bench.run([(30, 1), (10, 1)], 2, "decode")


def test_parts_are_as_the_tests_suppose():
    """Tiles, ratios and tolerances that give the variants above their meaning."""
    kernels = [AttentionBench(case, "fast").kernels["attend_decode"] for case in CHOSEN[1:3]]
    assert kernels[0].tiles and kernels[0].rows_in_place and not kernels[1].tiles
    assert FAST_ERROR > 100 * SUM_ERROR
    assert {case.cache for case in CHOSEN} == {"bf16", "f16", "q8", "q4", "f32"}
    assert kernels[0].cache is DType.BF16
