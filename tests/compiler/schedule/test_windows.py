"""The arena of a model whose layers have windows: planned bytes, by hand."""

import pytest

from mlxr.compiler.artifact import ArenaGeometry, DType
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr_tests.specs import small_spec

GPT_OSS = {
    "model__num_layers": 24,
    "model__context": 32768,
    "model__attention": {"num_heads": 64, "num_kv_heads": 8, "head_dim": 64},
    "model__layer_types": {"sliding": {"attention": {"sliding_window": 128}}, "full": {}},
    "model__layer_pattern": ["sliding", "full"],
    "cache": {"block_size": 16, "dtype": "bf16", "max_sequences": 1, "num_blocks": 2048, "mode": "paged"},
    "prefill_chunk": 512,
}
ROW = 2 * 8 * 64 * 2  # K and V of a token in a layer, bf16


def test_the_shape_of_gpt_oss_takes_half() -> None:
    arena = arena_geometry(small_spec(**GPT_OSS), GeometryTable())
    whole = 24 * 32768 * ROW
    full, windowed = arena.groups
    assert full.layers == tuple(range(1, 24, 2)) and windowed.layers == tuple(range(0, 24, 2))
    assert arena.size_bytes == 12 * 32768 * ROW + 12 * windowed.num_blocks * 16 * ROW
    assert 0.5 * whole < arena.size_bytes < 0.53 * whole and arena.whole_bytes == whole
    parts = arena.summary.split("; ")
    assert "window" not in parts[0] and parts[1] == (
        f"K and V, each {windowed.num_blocks} blocks x 12 layers x 16 tokens x 8 x 64, bf16, for a window of 128 tokens"
    )
    # A sequence's window, a tile of keys, what may be taken back, and a step of a prompt fit.
    assert windowed.num_blocks * 16 > 128 + 128 + 64 + 512


def test_values_of_another_size_take_their_own_bytes() -> None:
    """The shape of MiMo-V2: in q8 the rows of keys and of values have a scale each, in q4 one for each 32."""
    layers = {"sliding": {"attention": {"num_kv_heads": 8, "sliding_window": 129}}, "full": {}}
    changes: dict[str, object] = {
        "model__attention": {"num_heads": 64, "num_kv_heads": 4, "head_dim": 192, "v_dim": 128},
        "model__layer_types": layers,
    }
    for dtype, row in (("bf16", 2 * (192 + 128)), ("q8", 192 + 4 + 128 + 4), ("q4", 192 + 12 + 96 + 8)):
        arena = arena_geometry(small_spec(**GPT_OSS | changes | {"cache__dtype": dtype}), GeometryTable())
        windowed = arena.groups[1]
        assert arena.size_bytes == 12 * 32768 * 4 * row + 12 * windowed.num_blocks * 16 * 8 * row
        assert arena.block_bytes == 12 * 16 * 4 * row
    assert arena.summary.startswith("K, 2048 blocks x 12 layers x 16 tokens x 4 x 204, q4_keys; V, 2048 blocks")
    assert "x 16 tokens x 4 x 104, q4" in arena.summary and arena.cache_type is DType.Q4


@pytest.mark.parametrize(
    "changes",
    [
        {"model__context": 512, "cache__num_blocks": None},
        {"cache__mode": "contiguous", "cache__num_blocks": None},
        {"parallel": {"tensor": 2}},
        {"output": "hidden", "cache__num_blocks": None},
        {"cache": GPT_OSS["cache"] | {"keep_windows": True}},  # type: ignore[operator]
    ],
    ids=["short", "contiguous", "ranks", "hidden", "asked for"],
)
def test_one_group_keeps_all_tokens_where_windows_save_nothing(changes: dict[str, object]) -> None:
    arena = arena_geometry(small_spec(**GPT_OSS | changes), GeometryTable())
    assert [group.layers for group in arena.groups] == [tuple(range(24))]


def test_a_budget_that_windows_alone_exceed_is_not_exceeded() -> None:
    """Where all layers have windows: then as few blocks as fit hold all tokens of all layers."""
    cache = {"block_size": 16, "dtype": "bf16", "max_sequences": 1, "mode": "paged"}

    def arena_of(**sizes: int) -> ArenaGeometry:
        spec = {**GPT_OSS, "model__layer_pattern": ["sliding"], "cache": cache | sizes}
        del spec["model__layer_types"]
        sliding = {"sliding": {"attention": {"sliding_window": 128}}}
        return arena_geometry(small_spec(**spec, model__layer_types=sliding), GeometryTable())

    windowed = arena_of()
    assert [group.layers for group in windowed.groups] == [(), tuple(range(24))]
    assert arena_of(memory_budget=windowed.size_bytes) == windowed
    smaller = arena_of(memory_budget=windowed.size_bytes - 1, least_context=512)
    assert smaller.size_bytes < windowed.size_bytes and [group.window for group in smaller.groups] == [None]
