"""Decode attention with MMA: whole contexts, partitions and many sequences."""

import itertools

import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.attention_cases import NOT_FOR_MATRICES, Case
from mlxr_tests.few import covering, few
from mlxr_tests.op_bench import OpBench, mma_bench
from mlxr_tests.specs import compiled
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")

OP = "layers.1.attention.attended"
CASES = [
    Case(8, 1, 64, "bf16", "bf16", "layer", "paged", 16, None, "half"),
    Case(8, 2, 128, "bf16", "bf16", "layer", "contiguous", 16, None, "llama3"),
    Case(16, 2, 64, "f16", "f16", "block", "paged", 32, None, "interleaved"),
    Case(4, 4, 128, "f16", "f16", "block", "paged", 4, 20, "half"),
    Case(14, 2, 64, "bf16", "bf16", "block", "contiguous", 16, None, "half-of-it"),
    Case(12, 2, 64, "bf16", "bf16", "layer", "paged", 16, 16, "none", extras="softcap"),
    Case(8, 2, 64, "f16", "f16", "layer", "paged", 16, None, "none", extras="sinks"),
    Case(6, 2, 64, "bf16", "bf16", "block", "paged", 16, None, "none", extras="alibi"),
    Case(6, 2, 128, "bf16", "bf16", "block", "paged", 8, 40, "yarn-half-of-it", extras="everything"),
    Case(8, 2, 64, "bf16", "bf16", "layer", "paged", 16, 40, "half", extras="chunks"),
    Case(8, 2, 64, "f16", "f16", "block", "paged", 16, None, "half", extras="element-gate"),
    Case(8, 2, 128, "bf16", "bf16", "block", "paged", 16, None, "half", extras="norms"),
    Case(6, 2, 64, "f16", "f16", "layer", "paged", 16, 40, "interleaved", extras="own-norms"),
]
PAGED = [case for case in CASES if case.mode == "paged"]


def attend(bench, *histories):
    """One new token for sequences that have this many; the attention kernels that ran."""
    seq_ids = bench.sequences(*histories)
    bench.launches.clear()
    bench.run("decode", [OP], bench.batch([(s, 1) for s in seq_ids]))
    bench.clear(seq_ids)
    return set(bench.launches)


WHOLE = list(itertools.product(CASES, [1, 3, 16]))
# What the others add stands in the same lines here and in launches of partitions.
OF_OWN_LINES = [
    (case, simdgroups)
    for case, simdgroups in covering(WHOLE, lambda pair: pair)
    if simdgroups > 1 or case.extras in ("own-norms", "norms", "chunks", "element-gate")
]


@pytest.mark.parametrize(("case", "simdgroups"), few(WHOLE, OF_OWN_LINES), ids=str)
def test_whole_contexts(kernel_host, case, simdgroups):
    """Of no keys, of less than one turn of a simdgroup, of one and of several; heads are merged in turns."""
    bench = mma_bench(compiled(case.spec, Geometry.of(attend_mma=1, attend_simdgroups=simdgroups)), kernel_host)
    for length in (0, 1, 16, 17, 48, 49, case.context - 1):
        assert attend(bench, length) == {"attend_mma"}
    if case.mode == "paged":
        assert attend(bench, 3, 0, case.context - 1) == {"attend_mma"}


@pytest.mark.parametrize("partition", few([16, 24], [24]))
@pytest.mark.parametrize("case", few(CASES, [CASES[7]]), ids=str)
def test_partitions(kernel_host, case, partition):
    """At their borders; with three of them they become longer."""
    sizes = {"partition": partition, "partitions": 3, "partition_simdgroups": 2, "partition_mma": 1}
    bench = mma_bench(compiled(case.spec, Geometry.of(attend_mma=1, **sizes)), kernel_host)
    for length in sorted(n * partition + d for n in (1, 2, 3, 6) for d in (-1, 0, 1)):
        whole = length < partition
        assert attend(bench, length) == ({"attend_mma"} if whole else {"attend_partition_mma", "attend_reduce"})
    if case.mode == "paged":
        attend(bench, 3, case.context - 1, 0)


@pytest.mark.parametrize("case", few(PAGED, PAGED[-1:]), ids=str)
def test_many_sequences(kernel_host, case):
    """Of any lengths, in one launch."""
    sizes = {"attend_many": 2, "attend_many_simdgroups": 2, "attend_many_mma": 1}
    sizes |= {"attend_crowd": 3, "attend_crowd_simdgroups": 1, "attend_crowd_resident": 2}
    bench = mma_bench(compiled(case.spec, Geometry.of(partition=16, **sizes)), kernel_host)
    assert attend(bench, 150, 33) == {"attend_many_mma"}
    assert attend(bench, 7, 49, 0) == {"attend_crowd_mma"}


@pytest.mark.parametrize("case", few(PAGED, [PAGED[3]]), ids=str)
def test_threadgroups_share_contexts(kernel_host, case):
    """Where threadgroups read each other's memory; elsewhere the first takes all keys."""
    sizes = {"attend_mma": 1, "attend_together": 4, "attend_together_simdgroups": 2, "attend_together_context": 96}
    bench = mma_bench(compiled(case.spec, Geometry.of(partition=16, **sizes)), kernel_host)
    for length in (0, 1, 63, 64, 95):
        assert attend(bench, length) == {"attend_mma"}
    assert attend(bench, 96) == {"attend_partition", "attend_reduce"}


MISTAKES = [
    ("threadgroup_barrier(mem_flags::mem_threadgroup);", "", 1),
    ("float sum = owner ? exp2(newest_score[g] - largest) : 0.0f", "float sum = exp2(newest_score[g] - largest)", 2),
    ("kept.x, p.y - kept.y", "p.x, p.y - p.y", 1),
    ("total = total * keep +", "total = total +", 1),
    ("if (keeps.x != 1.0f || keeps.y != 1.0f)", "if (false)", 1),
    ("min(first + j / 2 * 8 + 2 * quad + j % 2, end - 1)", "first + j / 2 * 8 + 2 * quad + j % 2", 1),
    ("from + 8 < end ?", "true ?", 1),
    ("if (owner) {", "if (!owner) {", 2),
    ("simd_shuffle(keep, quad * 8 + 4)", "simd_shuffle(keep, quad * 8)", 1),
    ("const bool owner = rank == ranks - 1", "const bool owner = rank == ranks", 3),
    ("at, float2(largest, sum)", "at, float2(largest, 1.0f)", 3),
    ("(end - begin + 15) / 16", "(end - begin) / 16", 1),
]
"""What the text has, what it becomes, and the case: 1 whole contexts, 2 partitions, 3 contexts that are shared."""


@pytest.mark.long
@pytest.mark.parametrize(("old", "new", "kind"), MISTAKES)
def test_mistake_is_noticed(kernel_host, old, new, kind):
    """In a model with contexts of several turns of one simdgroup, large scores, and a block that ends in a turn."""
    if kernel_host != "sim":
        pytest.skip("a card may not show a race or a read out of bounds")
    case = Case(8, 2, 64, "bf16", "bf16", "layer", "paged", 4, None, "half")
    sizes = {"attend_mma": 1, "attend_simdgroups": 2, "attend_together": 4 if kind == 3 else 1}
    artifact = compiled(case.spec, Geometry.of(**({"partition": 24, "partition_mma": 1} if kind == 2 else sizes)))
    entry = artifact.kernel_entry("attend_partition_mma" if kind == 2 else "attend_mma")
    text = artifact.kernel_text(entry.name)
    assert old in text, "the mistake must be possible"
    mistaken = OpBench(
        Artifact({**artifact.files, entry.file: text.replace(old, new)}), scale=1.0 if kind == 2 else 20.0
    )
    with pytest.raises((Mismatch, KernelFault)):
        for lengths in ((150, 70, 3), (33, 65, 129)):
            attend(mistaken, *lengths)


def attend_beside_a_large_score(artifact, seed):
    """150 keys of weights about 2^-30, with values that make them count, and one or two of large scores."""
    bench = OpBench(artifact, seed)
    (seq_id,) = bench.sequences(150)
    for arena in (bench.arena, bench.reference_arena):
        k, v = (
            np.array(array, copy=False).reshape(2, -1, 64)
            for array in (arena.stores["k_arena"], arena.stores["v_arena"])
        )
        k[:, :150], v[:, :150] = 0.0, 60000.0
        k[:, 40, 0], k[:, 41, 0] = 250.0, -250.0  # of which one is large, whatever the query
        v[:, 40:42] = 0.01
    bench.run("decode", [OP], bench.batch([(seq_id, 1)]))


def test_weights_too_small_for_f16_count(kernel_host):
    case = Case(1, 1, 64, "f16", "f16", "layer", "contiguous", 16, None, "none")
    artifact = compiled(case.spec, Geometry.of(attend_mma=1, attend_simdgroups=1))
    for seed in range(8):
        attend_beside_a_large_score(artifact, seed)
    if kernel_host != "sim":
        return  # where numbers differ in each repetition, not all eight notice the mistake
    entry = artifact.kernel_entry("attend_mma")
    text = artifact.kernel_text(entry.name)
    assert " + 14.0f" in text and " - 14.0f" in text, "the mistake must be possible"
    mistaken = Artifact({**artifact.files, entry.file: text.replace(" + 14.0f", "").replace(" - 14.0f", "")})
    with pytest.raises(Mismatch):
        for seed in range(8):
            attend_beside_a_large_score(mistaken, seed)


OTHERS = [Case(16, 1, 64, "bf16", "bf16", "layer", "paged", 16, None, "half"), *NOT_FOR_MATRICES]


@pytest.mark.parametrize("case", few(OTHERS, OTHERS[2::3]), ids=str)
def test_others_are_not(case):
    """Where there is no such kernel, there is the ordinary one."""
    bench = OpBench(compiled(case.spec, Geometry.of(attend_mma=1)))
    assert attend(bench, 20) == {"attend"}
