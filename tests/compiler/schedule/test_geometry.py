"""The geometry's records: flat names for users, nested records for the compiler, one translation between them."""

import pytest

from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.geometry import AttendWhole, DecodeAttention, Geometry, ManyRows, OneRow

FLAT = (
    *("matvec_outputs", "matvec_simdgroups", "matvec_split", "matvec_unroll", "matvec_threadgroups"),
    *("matvec_stages", "matvec_wanted_kib", "matvec_leads", "matvec_mma"),
    *("matmul_outputs", "matmul_simdgroups", "matmul_tile", "matmul_shared", "gemm_min_rows", "gemm_mma"),
    "experts_min_rows",
    "experts_mma_tokens",
    *("mma_min_rows", "mma_max_rows", "mma_simdgroups", "mma_outputs", "mma_together", "mma_stages"),
    *("mma_stage_kib", "mma_wide_outputs", "mma_wide_simdgroups", "mma_wide_together", "mma_wide_stages"),
    *("mma_wide_pieces", "mma_wide_rows", "mma_threadgroups"),
    *("mlx_min_rows", "mlx_quantised_min_rows", "unpack_unroll"),
    *("attend_simdgroups", "attend_heads", "attend_unroll", "attend_whole", "attend_mma"),
    *("attend_together", "attend_together_simdgroups", "attend_together_context"),
    *("attend_many", "attend_many_simdgroups", "attend_many_heads", "attend_many_unroll", "attend_many_mma"),
    *("attend_crowd", "attend_crowd_simdgroups", "attend_crowd_resident"),
    *("partition", "partitions", "partition_simdgroups", "partition_heads", "partition_unroll", "partition_mma"),
    "partition_mma_simdgroups",
    *("prefill_rows", "prefill_keys", "prefill_rows_per_simdgroup", "prefill_mma", "prefill_parts"),
    *("mlx_min_tokens", "mlx_min_context", "delta_chunk_tokens"),
    *("chunk_tokens", "chunk_padding", "chunk_last_rows", "contiguous_context"),
    *("step_threads", "step_rank_threads", "step_sequences", "step_blocks"),
)
"""What chips' tables, plans and tuning.json call the sizes: to rename one breaks the files of users."""


def test_flat_names_are_those_that_users_write() -> None:
    assert Geometry.names() == FLAT
    assert tuple(Geometry().flat()) == FLAT


@pytest.mark.parametrize("name", FLAT)
def test_a_size_has_one_value_by_both_names(name: str) -> None:
    base = {"matvec_outputs": 16} if name == "matvec_mma" else {}
    for value in {0, 1, 2, 16, 32} - {Geometry.of(**base).flat()[name]}:
        try:
            changed = Geometry.of(**base | {name: value})
        except PlanError:
            continue
        assert changed.flat() == Geometry.of(**base).flat() | {name: value}
        return
    pytest.fail("no other value is possible")


def test_records_are_parts_of_the_whole() -> None:
    geometry = Geometry.of(matvec_outputs=8, matvec_simdgroups=4, partition=16, mlx_min_rows=0)
    assert geometry.one_row == OneRow(outputs=8, simdgroups=4)
    assert geometry.decode_attention.partition.length == 16
    assert geometry.decode_attention.whole == AttendWhole()
    assert geometry.many_rows.library.min_rows == 0
    assert geometry.changed({}) is geometry


def test_names_of_a_record_or_of_some_of_its_fields() -> None:
    assert OneRow.names("outputs", "mma") == ("matvec_outputs", "matvec_mma")
    assert DecodeAttention.names("heads") == ("attend_heads", "attend_many_heads", "partition_heads")
    assert "mlx_quantised_min_rows" in ManyRows.names()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"gemm_mma": 2}, "geometry: gemm_mma is 2; expected 0 or 1"),
        ({"prefill_keys": 64}, "geometry: prefill_keys is 64; expected 4, 8, 16 or 32, a lane each"),
        ({"mma_simdgroups": 0}, "geometry: mma_simdgroups is 0; expected 1 to 14, whose sums fit"),
        ({"mma_stages": 1}, "geometry: mma_stages is 1; expected 0, or at least 2"),
        ({"contiguous_context": -1}, "geometry: contiguous_context is -1; expected at least 0"),
        ({"step_threads": -32}, "geometry: step_threads is -32; expected a multiple of 32 up to 1024"),
        ({"prefill_mma": 1, "prefill_rows": 24}, "geometry: prefill_rows is 24 with prefill_mma; expected a multiple"),
    ],
)
def test_messages_say_what_a_size_may_be(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Geometry.of(**sizes)


def test_a_size_that_there_is_not_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="the geometry has no matmul_split"):
        Geometry.of(matmul_split=2)
