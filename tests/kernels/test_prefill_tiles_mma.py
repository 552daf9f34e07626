"""Prefill attention by matrix instructions of four simdgroups: the cases of those of one, and mistakes."""

from dataclasses import replace

import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.attention_cases import Case
from mlxr_tests.few import few
from mlxr_tests.op_bench import mma_bench
from mlxr_tests.prefill_cases import CASES, EXACTNESS, OPS, prefill
from mlxr_tests.specs import compiled
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")

LABEL = "attend_prefill_tiles_mma"
ROUNDED = 1600.0
"""One number of bf16 in place of two, in the same units: the most that was seen is 1,300."""


def sizes(rows, parts=2):
    return Geometry.of(prefill_mma=2, prefill_rows=rows, prefill_parts=parts)


# Not the last case with all extras: its frame is larger than what sim allows.
OWN = CASES[:-1]
CHUNKED = [(case, rows, parts) for case in OWN for rows in (64, 128) for parts in (2, 1)]


@pytest.mark.parametrize(("case", "rows", "parts"), few(CHUNKED, CHUNKED[:1]), ids=str)
def test_chunks(kernel_host, case, rows, parts):
    """First and later ones, of one token, a tile and more, several; contexts of one and several tiles of keys."""
    exactness = EXACTNESS if parts == 2 else ROUNDED
    bench = mma_bench(compiled(case.spec, sizes(rows, parts)), kernel_host, exactness)
    tile = bench.plan.query_tile
    assert tile == max(1, rows // (case.heads // case.kv_heads))
    for history, new in ((0, 1), (0, tile + 1), (5, 2 * tile + 1), (100, 20), (case.context - 33, 33)):
        assert prefill(bench, (history, min(new, 64))) == {LABEL}


def test_the_arenas_token_goes_on_where_a_batch_is_filled_up(kernel_host):
    """Tiles that nobody has come first; the threadgroups of these return early."""
    bench = mma_bench(compiled(CASES[0].spec, sizes(64)), kernel_host, EXACTNESS)
    batch = bench.batch([(seq_id, 3) for seq_id in bench.sequences(0)])
    nobodys = np.array([(-1, batch.num_tokens)], np.int32)
    bench.run("prefill", OPS, replace(batch, query_tiles=np.concatenate([batch.query_tiles, nobodys])))


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in OWN if case.mode == "paged"], ids=str)
def test_many_sequences(kernel_host, case):
    """Prompts beside sequences that decode."""
    bench = mma_bench(compiled(case.spec, sizes(64)), kernel_host, EXACTNESS)
    assert prefill(bench, (15, 1), (0, 30), (35, 7)) == {LABEL}
    assert prefill(bench, (0, 3), (77, 1), (case.context - 2, 2)) == {LABEL}


MISTAKES = [
    ("threadgroup_barrier(mem_flags::mem_threadgroup);", ""),
    ("total = total * keep;", ""),
    ("float4(keep.x, keep.x, keep.y, keep.y)", "float4(keep.x, keep.y, keep.x, keep.y)"),
    ("weight[n / 2][n % 2 * 2 + 1] = most.y;", "weight[n / 2][n % 2 * 2 + 1] = most.x;"),
    ("pack_bf16(p.x - kept.x", "pack_bf16(p.x - p.x"),
    ("pack_bf16(turned.x - kept.x, turned.y - kept.y)", "0u"),
    ("y.x * even.x + x.x * even.y", "y.x * even.x - x.x * even.y"),
    ("(chunk % 8 ^ copied % 8)", "chunk % 8"),
    ("key <= position[i / 2]", "key < position[i / 2]"),
    ("if (first + 64u > all_see)", "if (first > all_see)"),
    ("first_before + 64u < end;", "first_before + 128u < end;"),
    ("slot = next;", ""),
    ("total = total + float2(simd_shuffle_xor", "total = float2(simd_shuffle_xor"),
    ("end - 1)) / 16u]", "end + 15)) / 16u]"),
    ("if (t < num_tokens) {", "{"),
    ("threadgroups_per_grid.y - 1 - threadgroup_position_in_grid.y", "threadgroup_position_in_grid.y / 2"),
]


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), MISTAKES)
def test_mistake_is_noticed(kernel_host, old, new):
    """Chunks of several tiles of tokens, after contexts of several tiles of keys."""
    if kernel_host != "sim":
        pytest.skip("a card may not show a race or a read out of bounds")
    case = Case(8, 2, 64, "bf16", "bf16", "layer", "paged", 16, None, "half", context=330)
    artifact = compiled(case.spec, sizes(64))
    entry = artifact.kernel_entry(LABEL)
    text = artifact.kernel_text(entry.name)
    assert old in text, "the mistake must be possible"
    mistaken = mma_bench(Artifact({**artifact.files, entry.file: text.replace(old, new)}), kernel_host, EXACTNESS)
    with pytest.raises((Mismatch, KernelFault)):
        for parts in (((70, 40), (0, 9)), ((128, 21),), ((0, 64),), ((256, 64),)):
            prefill(mistaken, *parts)


@pytest.mark.parametrize("rows", [64, pytest.param(48, marks=pytest.mark.long)])
def test_deterministic_sums_and_other_rows_have_none(rows):
    """The first would have other sums by the tile of a batch, the second fill no four simdgroups."""
    case = Case(8, 2, 64, "bf16", "bf16", "layer", "paged", 16, None, "half")
    spec = case.spec.model_copy(update={"deterministic": rows == 64})
    labels = {kernel.label for kernel in compiled(spec, sizes(rows)).plan.first.kernels}
    assert "attend_prefill_mma" in labels and LABEL not in labels
