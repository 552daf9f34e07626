"""Split-KV decode attention and its reduction; small partitions split small contexts."""

import numpy as np
import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.attention_cases import Case
from mlxr_tests.few import few
from mlxr_tests.op_bench import OpBench
from mlxr_tests.specs import compiled
from mlxr_tests.tolerances import check_op

pytestmark = pytest.mark.usefixtures("kernel_host")

OP = "layers.1.attention.attended"
CASES = [
    (16, Case(4, 4, 32, "f32", "f32", "block", "paged", 4, None, "half")),
    (32, Case(8, 1, 64, "f16", "f16", "layer", "paged", 16, None, "interleaved")),
    (16, Case(14, 2, 40, "bf16", "f32", "block", "contiguous", 1, None, "half-of-it")),
    (16, Case(8, 2, 80, "f32", "bf16", "layer", "paged", 32, 20, "llama3")),
    (32, Case(4, 2, 128, "bf16", "bf16", "block", "paged", 4, 5, "half")),
    (16, Case(16, 2, 96, "f16", "f32", "block", "paged", 16, 1, "linear")),
    (64, Case(8, 1, 256, "f32", "f32", "layer", "contiguous", 16, 64, "half")),
    (16, Case(6, 2, 40, "q8", "f32", "block", "paged", 4, None, "half")),
    (32, Case(8, 1, 64, "q8", "bf16", "layer", "contiguous", 16, 21, "none", extras="softcap")),
    (16, Case(8, 2, 64, "f16", "f32", "block", "paged", 16, None, "none", extras="sinks")),
    (16, Case(5, 5, 40, "f32", "f32", "block", "paged", 4, 40, "none", extras="alibi-sinks")),
    (32, Case(4, 4, 32, "q8", "f32", "layer", "paged", 8, 40, "yarn-half-of-it", extras="everything")),
    (16, Case(8, 2, 64, "bf16", "bf16", "block", "paged", 16, 40, "half", extras="chunks")),
    (16, Case(6, 2, 40, "f32", "f32", "layer", "paged", 4, None, "half", extras="element-gate")),
    (16, Case(8, 2, 64, "bf16", "bf16", "layer", "paged", 16, None, "half", extras="norms")),
]


PAGED = [one for one in CASES if one[1].mode == "paged"]
# With a window and without, q8, contiguous, sinks and all extras.
FEW = [CASES[3], CASES[7], CASES[8], CASES[10]]


def attend(bench, *histories):
    """One new token for sequences that have this many: [seqs, heads * head_dim]."""
    seq_ids = bench.sequences(*histories)
    batch = bench.batch([(s, 1) for s in seq_ids])
    values = bench.run("decode", [OP], batch)
    bench.clear(seq_ids)
    return values.get("layers.1.attention.gated", values.get(OP))


@pytest.mark.parametrize(("partition", "case"), few(CASES, FEW[2:3]), ids=str)
def test_partition_borders(partition, case):
    bench = OpBench(compiled(case.spec, Geometry.of(partition=partition)))
    window = case.window or 1
    lengths = {n + d for n in (partition, 2 * partition, partition + window) for d in (-1, 0, 1)} | {case.context - 1}
    for length in sorted(n for n in lengths if partition <= n < case.context):
        attend(bench, length)


@pytest.mark.parametrize(("partition", "case"), few(PAGED, [CASES[3], CASES[9]]), ids=str)
def test_only_some_sequences_are_long(partition, case):
    """A sequence shorter than a partition, or new, has empty ones; so has the head of a long one with a window."""
    bench = OpBench(compiled(case.spec, Geometry.of(partition=partition)))
    attend(bench, 3, case.context - 1, 0)
    attend(bench, partition, partition - 1, 2 * partition)
    attend(bench, 0, 0, partition)


@pytest.mark.parametrize(("heads", "unroll"), few([(0, 3), (2, 1), (1, 4)], [(2, 1)]))
@pytest.mark.parametrize(("partition", "case"), few(CASES, FEW[3:]), ids=str)
def test_partitions_lengthen_when_there_are_no_more(partition, case, heads, unroll):
    """At the borders, with all or some query heads of a KV head in a threadgroup, one key or several at once."""
    geometry = Geometry.of(partition=partition // 4, partitions=3, attend_heads=heads, attend_unroll=unroll)
    bench = OpBench(compiled(case.spec, geometry))
    most = 3 * geometry.decode_attention.partition.length
    for length in sorted(n + d for n in (most, 2 * most, case.context - 2) for d in (-1, 0, 1)):
        if length < case.context:
            attend(bench, length)
    if case.mode == "paged":
        attend(bench, most - 1, most, 2)


@pytest.mark.parametrize(("partition", "case"), few(CASES, FEW[:2]), ids=str)
def test_equals_unsplit(partition, case):
    lengths = (150, partition - 1, partition) if case.mode == "paged" else (150,)
    split, whole = (
        attend(OpBench(compiled(case.spec, Geometry.of(partition=p)), seed=5), *lengths) for p in (partition, 1024)
    )
    check_op("split and unsplit attention", split, whole, case.activation)


def test_more_partitions_than_a_simdgroup_has_lanes():
    """Lane l of the reduction weighs partitions l, l + 32, ..."""
    case = CASES[0][1]
    bench = OpBench(compiled(case.spec, Geometry.of(partition=4, partitions=64)))
    for length in (127, 128, 131, case.context - 1):
        attend(bench, length)


def test_short_contexts_are_not_split():
    """The condition that chooses the variant: contexts up to a partition take the one-launch kernel."""
    plan = compiled(CASES[0][1].spec, Geometry.of(partition=16)).plan
    labels = {
        context: [
            plan.first.kernel(launch.kernel).label
            for launch in plan.first.phase("decode").launches
            if launch.op == OP and (launch.when is None or launch.when.holds({"context": context}))
        ]
        for context in (1, 16, 17, 170)
    }
    assert labels[1] == labels[16] == ["attend"]
    assert labels[17] == labels[170] == ["attend_partition", "attend_reduce"]


def test_window_leaves_whole_partitions_empty():
    """With a window shorter than the gap, the first partitions contribute nothing, and exactly nothing."""
    case = Case(4, 2, 32, "f32", "f32", "block", "paged", 4, 6, "half")
    narrow = OpBench(compiled(case.spec, Geometry.of(partition=16)), seed=9)
    seq_ids = narrow.sequences(100)
    batch = narrow.batch([(seq_ids[0], 1)])
    state = narrow.rng.bit_generator.state
    first = narrow.run("decode", [OP], batch)[OP]
    # NaN in every slot outside the window: nobody may read them.
    table = narrow.pager.block_table(seq_ids[0])
    for arena in (narrow.arena, narrow.reference_arena):
        for array in (arena.stores["k_arena"], arena.stores["v_arena"]):
            view = np.array(array, copy=False)
            for position in range(95):
                view[table[position // 4], :, position % 4] = np.nan if arena is narrow.arena else 1.0
    narrow.rng.bit_generator.state = state
    second = narrow.run("decode", [OP], batch)[OP]
    assert (first == second).all()


@pytest.mark.parametrize(("heads", "unroll"), few([(0, 1), (2, 2), (1, 3)], [(1, 3)]))
@pytest.mark.parametrize(("partition", "case"), few(PAGED, FEW[:2]), ids=str)
def test_many_sequences_are_one_launch(partition, case, heads, unroll):
    """From some number of sequences on contexts are not split; below it they are as ever."""
    sizes = {"attend_many": 3, "attend_many_simdgroups": 2, "attend_many_heads": heads, "attend_many_unroll": unroll}
    bench = OpBench(compiled(case.spec, Geometry.of(partition=partition, **sizes)))
    attends = ("attend", "attend_partition", "attend_many")
    for histories, expected in (
        ((partition, 3), "attend_partition"),
        ((150, partition, 1), "attend_many"),
        ((3,), "attend"),
    ):
        attend(bench, *histories)
        dims = {"seqs": len(histories), "context": max(histories) + 1}
        running = [
            one
            for one in bench.plan.first.phase("decode").launches
            if one.op == OP and one.when and one.when.holds(dims)
        ]
        assert [label for one in running if (label := bench.plan.first.kernel(one.kernel).label) in attends] == [
            expected
        ]
