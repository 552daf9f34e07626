"""The arena of host cpu: the same bytes at the same places as an arena of MLX arrays."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from mlxr.compiler.errors import ArenaError
from mlxr.compiler.formats.dtypes import DType
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.arena_blocks import read_blocks, write_blocks
from mlxr.runtime.hosts.cpu.mapped_arena import MappedArena
from mlxr_tests.kv_arena import kv_arena

GEOMETRY = kv_arena("block", "paged", 7, 3, 4, 2, 32, DType.F32, 5, 2, 18)


@pytest.mark.parametrize(
    ("layout", "dtype"), [("block", DType.F16), ("layer", DType.Q8), ("block", DType.F32), ("layer", DType.BF16)]
)
def test_blocks_lie_where_those_of_mlx_arrays_do(layout: str, dtype: DType) -> None:
    geometry = replace(GEOMETRY, layout=layout).with_cache(dtype)
    mapped, arrays = MappedArena(geometry), Arena(geometry)
    data = np.random.default_rng(3).integers(0, 256, (2, geometry.size_bytes // 7), np.uint8)
    for arena in (mapped, arrays):
        assert not any(bits.any() for bits in arena.bits().values()), "an arena begins with zeros"
        write_blocks(arena, [5, 0], data)
        np.testing.assert_array_equal(read_blocks(arena, [0, 5]), data[::-1])
    for own, other in zip(mapped.bits().values(), arrays.bits().values(), strict=True):
        assert own.shape == geometry.allocations[0].shape
        np.testing.assert_array_equal(own.view(np.uint8), other.view(np.uint8))
    assert mapped.addresses() == tuple(bits.ctypes.data for bits in mapped.bits().values())


def test_memory_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mlxr.runtime.hosts.cpu.memory.mmap.mmap", refuse)
    with pytest.raises(ArenaError, match=r"for the KV arena: .*Cannot allocate memory; .*a smaller cache"):
        MappedArena(GEOMETRY)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what pages hold that were given back")
def test_memory_that_is_given_back_is_zero_and_nothing_else_is() -> None:
    arena = MappedArena(kv_arena("block", "paged", 7, 8, 8, 2, 32, DType.F32, 5, 2, 18))  # blocks of 4 pages
    for bits in arena.bits().values():
        bits[...] = 1
    arena.give_back([4, 2, 1])
    for bits in arena.bits().values():
        assert [bool(block.any()) for block in bits] == [True, False, False, True, False, True, True]
        assert bits.sum() == 4 * bits[0].size
    groups = (*arena.geometry.groups, replace(arena.geometry.groups[0], layers=(8,), num_blocks=3))
    stores = tuple(replace(store, rows=(*store.rows, store.rows[0])) for store in arena.geometry.stores)
    arena = MappedArena(replace(arena.geometry, stores=stores, groups=groups, block_size=64))
    for bits in arena.bits().values():
        bits[...] = 1
    arena.give_back([1], 1)
    for name, bits in arena.bits().items():
        assert [bool(block.any()) for block in bits] == ([True, False, True] if name.endswith(".1") else [True] * 7)
    layers = MappedArena(replace(GEOMETRY, layout="layer"))
    layers.bits()["k_arena"][...] = 1
    layers.give_back([0, 1])
    assert layers.bits()["k_arena"].all(), "blocks of all layers have no pages of their own"
