"""The arena of host cpu: the same bytes at the same places as an arena of MLX arrays."""

from dataclasses import replace

import numpy as np
import pytest

from mlxr.compiler.artifact import ArenaGeometry
from mlxr.compiler.errors import ArenaError
from mlxr.compiler.formats.dtypes import DType
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.arena_blocks import read_blocks, write_blocks
from mlxr.runtime.hosts.cpu.mapped_arena import MappedArena

GEOMETRY = ArenaGeometry("block", "paged", 7, 3, 4, 2, 32, DType.F32, 5, 2, 18)


@pytest.mark.parametrize(
    ("layout", "dtype"), [("block", DType.F16), ("layer", DType.Q8), ("block", DType.F32), ("layer", DType.BF16)]
)
def test_blocks_lie_where_those_of_mlx_arrays_do(layout: str, dtype: DType) -> None:
    geometry = replace(GEOMETRY, layout=layout, dtype=dtype)
    mapped, arrays = MappedArena(geometry), Arena(geometry)
    data = np.random.default_rng(3).integers(0, 256, (2, geometry.size_bytes // 7), np.uint8)
    for arena in (mapped, arrays):
        assert not any(bits.any() for bits in arena.bits()), "an arena begins with zeros"
        write_blocks(arena, [5, 0], data)
        np.testing.assert_array_equal(read_blocks(arena, [0, 5]), data[::-1])
    for own, other in zip(mapped.bits(), arrays.bits(), strict=True):
        assert own.shape == geometry.shape
        np.testing.assert_array_equal(own.view(np.uint8), other.view(np.uint8))
    assert mapped.addresses() == tuple(bits.ctypes.data for bits in mapped.bits())


def test_memory_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mlxr.runtime.hosts.cpu.memory.mmap.mmap", refuse)
    with pytest.raises(ArenaError, match=r"for the KV arena: .*Cannot allocate memory; .*a smaller cache"):
        MappedArena(GEOMETRY)
