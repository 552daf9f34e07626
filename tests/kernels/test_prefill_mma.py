"""Prefill attention with MMA: chunks anywhere in a context, many sequences, and mistakes."""

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.attention_cases import NOT_FOR_MATRICES, Case
from mlxr_tests.few import few
from mlxr_tests.op_bench import OpBench, mma_bench
from mlxr_tests.prefill_cases import CASES, EXACTNESS, PAGED, prefill
from mlxr_tests.specs import compiled
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")

LABEL = "attend_prefill_mma"

CHUNKED = [(case, rows) for case in CASES for rows in (16, 48, 64)]


@pytest.mark.parametrize(("case", "rows"), few(CHUNKED, CHUNKED[::15]), ids=str)
def test_chunks(kernel_host, case, rows):
    """First and later ones, of one token, less than a tile, a tile, several; 48 rows do not divide the tile of keys."""
    bench = mma_bench(compiled(case.spec, Geometry.of(prefill_mma=1, prefill_rows=rows)), kernel_host, EXACTNESS)
    tile = bench.plan.query_tile
    assert tile == max(1, rows // (case.heads // case.kv_heads))
    chunks = [
        (0, 1),
        (0, tile),
        (0, tile + 1),
        (63, 1),
        (5, 2 * tile + 1),
        (64, 64),
        (100, 20),
        (case.context - 33, 33),
    ]
    for history, new in chunks:
        assert prefill(bench, (history, min(new, 64))) == {LABEL}


@pytest.mark.parametrize("case", few(PAGED, PAGED[-1:]), ids=str)
def test_many_sequences(kernel_host, case):
    """Prompts beside sequences that decode."""
    bench = mma_bench(compiled(case.spec, Geometry.of(prefill_mma=1, prefill_rows=64)), kernel_host, EXACTNESS)
    assert prefill(bench, (15, 1), (0, 30), (35, 7)) == {LABEL}
    assert prefill(bench, (0, 3), (77, 1), (case.context - 2, 2)) == {LABEL}


MISTAKES = [
    ("threadgroup_barrier(mem_flags::mem_threadgroup);", ""),
    ("total = total * keep;", ""),
    ("float4(keep.x, keep.x, keep.y, keep.y)", "float4(keep.x, keep.y, keep.x, keep.y)"),
    ("if (keep.x != 1.0f || keep.y != 1.0f)", "if (false)"),
    ("most[2 * j + 1] = rounded.y;", "most[2 * j + 1] = rounded.x;"),
    ("least[2 * j] = pack_bf16(p.x - kept.x", "least[2 * j] = pack_bf16(p.x - p.x"),
    ("pack_bf16(x.x - kept.x, x.y - kept.y)", "0u"),
    ("chunk ^ (key % 2 * 4)", "chunk"),
    ("group) ^ (quad * 2)", "group)"),
    ("key <= position[i / 2]", "key < position[i / 2]"),
    ("if (first + 64u > all_see)", "if (first > all_see)"),
    ("if (first >= some_see)", "if (first + 64 >= some_see)"),
    ("total = total + float2(simd_shuffle_xor", "total = float2(simd_shuffle_xor"),
    ("min(first + 64u + i / 8u, end - 1)", "first + 64u + i / 8u"),
    ("if (t < num_tokens) {", "{"),
]


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), MISTAKES)
def test_mistake_is_noticed(kernel_host, old, new):
    """Chunks of several tiles of tokens, after contexts of several tiles of keys."""
    if kernel_host != "sim":
        pytest.skip("a card may not show a race or a read out of bounds")
    case = Case(8, 2, 64, "bf16", "bf16", "layer", "paged", 4, None, "half")
    artifact = compiled(case.spec, Geometry.of(prefill_mma=1, prefill_rows=64))
    entry = artifact.kernel_entry(LABEL)
    text = artifact.kernel_text(entry.name)
    assert old in text, "the mistake must be possible"
    mistaken = mma_bench(Artifact({**artifact.files, entry.file: text.replace(old, new)}), kernel_host, EXACTNESS)
    with pytest.raises((Mismatch, KernelFault)):
        for parts in (((70, 40), (0, 9)), ((128, 21),), ((0, 64),)):
            prefill(mistaken, *parts)


def test_rows_that_see_no_key_of_the_first_tile(kernel_host):
    """64 query tokens with a window of 2: the last ones see nothing of the first 64 keys."""
    case = Case(2, 2, 64, "bf16", "bf16", "layer", "paged", 16, 2, "half")
    bench = mma_bench(compiled(case.spec, Geometry.of(prefill_mma=1, prefill_rows=128)), kernel_host, EXACTNESS)
    assert bench.plan.query_tile == 128
    assert prefill(bench, (60, 64)) == {LABEL}


@pytest.mark.parametrize("case", few(NOT_FOR_MATRICES, NOT_FOR_MATRICES[::2]), ids=str)
def test_others_are_not(case):
    """Where there is no such kernel, there is the ordinary one."""
    bench = OpBench(compiled(case.spec, Geometry.of(prefill_mma=1)))
    assert prefill(bench, (20, 9)) == {"attend_prefill"}
