"""Prefill attention of long heads with MMA: simdgroups share heads' elements, anywhere in a context; and mistakes."""

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.attention_cases import Case
from mlxr_tests.few import few
from mlxr_tests.op_bench import OpBench, mma_bench
from mlxr_tests.specs import compiled
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")

OPS = ["layers.1.attention.cache_write", "layers.1.attention.attended"]
LABEL = "attend_prefill_wide_mma"
EXACTNESS = 2.0
"""As of shorter heads."""
CASES = [
    # case, prefill_rows, prefill_keys, prefill_rows_per_simdgroup; tokens of a tile, and threads
    (Case(8, 2, 256, "bf16", "bf16", "block", "paged", 16, 40, "half"), (32, 32, 4), (8, 256)),
    (Case(4, 2, 512, "f16", "f16", "layer", "paged", 4, None, "half-of-it"), (16, 16, 4), (8, 128)),
    (Case(4, 2, 512, "f16", "f16", "layer", "contiguous", 4, None, "interleaved"), (64, 32, 2), (8, 256)),
    (Case(4, 2, 512, "bf16", "bf16", "block", "paged", 16, 70, "half"), (64, 32, 8), (16, 256)),
    (Case(4, 1, 256, "bf16", "bf16", "layer", "contiguous", 16, None, "llama3"), (64, 4, 16), (16, 256)),
    (Case(16, 1, 256, "f16", "f16", "block", "paged", 32, 40, "half", extras="chunks"), (64, 16, 4), (4, 512)),
    (Case(6, 2, 256, "f16", "f16", "block", "paged", 16, None, "none", extras="alibi-sinks"), (48, 16, 8), (16, 192)),
    (Case(20, 1, 320, "bf16", "bf16", "block", "paged", 8, 40, "none", extras="everything"), (32, 32, 4), (1, 160)),
    (Case(8, 2, 384, "bf16", "bf16", "block", "paged", 16, 40, "half", extras="element-gate"), (16, 16, 2), (4, 192)),
    (Case(6, 2, 192, "bf16", "bf16", "layer", "paged", 16, 21, "half-of-it", extras="sinks"), (32, 32, 16), (10, 192)),
    (Case(6, 2, 192, "f16", "f16", "block", "paged", 16, None, "half", v_dim=128), (32, 16, 8), (10, 128)),
]
NOT_WIDE = [
    Case(8, 2, 160, "bf16", "bf16", "layer", "paged", 16, None, "half"),
    Case(8, 2, 256, "q8", "bf16", "layer", "paged", 16, None, "half"),
    Case(8, 2, 256, "bf16", "f32", "layer", "paged", 16, None, "half"),
    Case(8, 2, 192, "bf16", "bf16", "layer", "paged", 16, None, "half", v_dim=96),
    Case(4, 2, 128, "bf16", "bf16", "layer", "paged", 16, None, "half", v_dim=256),
]


def of_sizes(case: Case, rows: int, keys: int, rows_per_simdgroup: int) -> Artifact:
    sizes = {"prefill_rows": rows, "prefill_keys": keys, "prefill_rows_per_simdgroup": rows_per_simdgroup}
    return compiled(case.spec, Geometry.of(prefill_mma=1, **sizes))


def prefill(bench: OpBench, *parts: tuple[int, int]) -> None:
    """Some new tokens for sequences that have this many, (history, new)."""
    seq_ids = bench.sequences(*(history for history, _ in parts))
    bench.launches.clear()
    bench.run("prefill", OPS, bench.batch([(s, new) for s, (_, new) in zip(seq_ids, parts, strict=True)]))
    bench.clear(seq_ids)
    assert bench.launches[LABEL] == 1


@pytest.mark.parametrize(("case", "sizes", "expected"), few(CASES, CASES[1:2]), ids=str)
def test_chunks(kernel_host: str, case: Case, sizes: tuple[int, int, int], expected: tuple[int, int]) -> None:
    """First and later ones, of one token, a tile and one more, several tiles, and up to the end of the context."""
    artifact = of_sizes(case, *sizes)
    bench = mma_bench(artifact, kernel_host, EXACTNESS)
    tile = bench.plan.query_tile
    assert (tile, artifact.kernel_entry(LABEL).threads) == expected
    for history, new in ((0, 1), (5, 2 * tile + 1), (63, tile + 1), (case.context - 33, 33)):
        prefill(bench, (history, min(new, 64)))


def test_many_sequences(kernel_host: str) -> None:
    """Prompts beside sequences that decode, whose tiles have rows that are not there."""
    bench = mma_bench(of_sizes(CASES[0][0], *CASES[0][1]), kernel_host, EXACTNESS)
    prefill(bench, (15, 1), (0, 19), (75, 3))


@pytest.mark.parametrize("case", NOT_WIDE, ids=str)
def test_others_are_not(case: Case) -> None:
    labels = {kernel.label for kernel in compiled(case.spec, Geometry.of(prefill_mma=1)).plan.first.kernels}
    assert "attend_prefill" in labels and LABEL not in labels


MISTAKES = [
    ("    threadgroup_barrier(mem_flags::mem_threadgroup);\n    const threadgroup", "    const threadgroup"),
    ("  threadgroup_barrier(mem_flags::mem_threadgroup);\n\n", ""),
    ("written == parts ? parts + 512 : parts", "parts"),
    ("s < 4u", "s < 3u"),
    ("(simd_gid - share)", "simd_gid"),
    ("element = share * 64u + ", "element = "),
    ("total = total * keep;", ""),
    ("float4(keep.x, keep.x, keep.y, keep.y)", "float4(keep.x, keep.y, keep.x, keep.y)"),
    ("key <= position[i / 2]", "key < position[i / 2]"),
    ("if (first >= some_see)", "if (first + 16 >= some_see)"),
    ("simd_gid / 4u * 16", "simd_gid * 16"),
    ("share * 64u + quad * 16", "quad * 16"),
    ("min(first + 16u + n * 8 + group, end - 1)", "first + 16u + n * 8 + group"),
    ("j / 2 * 8 + 2 * quad + j % 2", "j / 2 * 8 + quad + j % 2"),
    ("if (t < num_tokens) {", "{"),
]


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(("old", "new"), MISTAKES)
def test_mistake_is_noticed(kernel_host: str, old: str, new: str) -> None:
    """Chunks of several tiles of tokens, after contexts of several tiles of keys."""
    artifact = of_sizes(Case(4, 2, 256, "bf16", "bf16", "layer", "paged", 4, None, "half"), 32, 16, 4)
    entry = artifact.kernel_entry(LABEL)
    text = artifact.kernel_text(entry.name)
    assert old in text, "the mistake must be possible"
    mistaken = mma_bench(Artifact({**artifact.files, entry.file: text.replace(old, new)}), kernel_host, EXACTNESS)
    with pytest.raises((Mismatch, KernelFault)):
        for parts in (((70, 40), (0, 9)), ((128, 21),), ((0, 64),)):
            prefill(mistaken, *parts)
