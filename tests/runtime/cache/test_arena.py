"""The arena's allocation: shapes, zeros, stable addresses, and refusals before memory is touched."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import ArenaError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import cache_row_bytes
from mlxr.runtime.arrays.mlx_arrays import as_bits
from mlxr.runtime.cache.arena import Arena
from mlxr_tests.kv_arena import kv_arena

GEOMETRY = kv_arena(
    layout="block",
    mode="paged",
    num_blocks=7,
    num_layers=3,
    block_size=4,
    num_kv_heads=2,
    head_dim=32,
    dtype=DType.F32,
    max_blocks_per_sequence=5,
    max_sequences=2,
    context=18,
)


@pytest.mark.parametrize(
    ("layout", "shape"), [("block", (7, 3, 4, 2, 32)), ("layer", (3, 7, 4, 2, 32))], ids=["block", "layer"]
)
@pytest.mark.parametrize(
    ("dtype", "mlx_dtype", "item_bytes"),
    [(DType.F32, mx.float32, 4), (DType.F16, mx.float16, 2), (DType.BF16, mx.bfloat16, 2)],
)
def test_shape_dtype_and_zeros(layout, shape, dtype, mlx_dtype, item_bytes):
    geometry = replace(GEOMETRY, layout=layout).with_cache(dtype)
    arena = Arena(geometry)
    assert geometry.cache_of(0).shape == shape
    assert geometry.size_bytes == 2 * 7 * 3 * 4 * 2 * 32 * item_bytes
    for array in (arena.stores["k_arena"], arena.stores["v_arena"]):
        assert array.shape == shape and array.dtype == mlx_dtype
        assert not mx.any(array != 0).item()
    assert arena.stores["k_arena"].nbytes + arena.stores["v_arena"].nbytes == geometry.size_bytes
    assert arena.token.shape == (8,) and arena.token.dtype == mx.uint32


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_addresses_never_move_while_the_arena_is_read(dtype):
    arena = Arena(GEOMETRY.with_cache(dtype))
    before = arena.addresses()
    for _ in range(5):
        total = mx.sum(arena.stores["k_arena"]) + mx.sum(arena.stores["v_arena"])
        arena.token = arena.token + 1
        mx.eval(total, arena.token)
        assert arena.addresses() == before
    assert arena.token.tolist() == [5] * 8
    k, v = before
    assert abs(k - v) >= arena.stores["k_arena"].nbytes, "K and V overlap"


@pytest.mark.parametrize(("layout", "shape"), [("block", (7, 3, 4, 2, 36)), ("layer", (3, 7, 4, 2, 36))])
def test_q8_rows_hold_their_scale(layout, shape):
    geometry = replace(GEOMETRY, layout=layout).with_cache(DType.Q8)
    arena = Arena(geometry)
    assert geometry.cache_of(0).shape == arena.stores["k_arena"].shape == arena.stores["v_arena"].shape == shape
    assert geometry.cache_of(0).row_bytes == geometry.cache_of(0).row_elements == 36
    assert (
        arena.stores["k_arena"].nbytes + arena.stores["v_arena"].nbytes == geometry.size_bytes == 2 * 7 * 3 * 4 * 2 * 36
    )
    assert as_bits(arena.stores["k_arena"]).dtype == np.uint8 and as_bits(arena.stores["k_arena"]).flags.writeable


@pytest.mark.parametrize(("head_dim", "row_bytes"), [(32, 28), (64, 52), (96, 80), (256, 208)])
def test_q4_rows_are_whole_words(head_dim, row_bytes):
    assert cache_row_bytes(DType.Q4, head_dim) == row_bytes
    cache = GEOMETRY.with_cache(DType.Q4).cache_of(0)
    assert (cache.dtype, cache.value_dtype, cache.value_dim) == (DType.Q4_KEYS, DType.Q4, cache.head_dim)
    assert cache.shape[-1] == cache_row_bytes(DType.Q4_KEYS, cache.head_dim)
    assert cache.value_shape[-1] == cache_row_bytes(DType.Q4, cache.head_dim)


def test_addresses_are_where_the_bytes_are():
    arena = Arena(GEOMETRY)
    host = np.asarray(arena.stores["v_arena"])
    assert host.__array_interface__["data"][0] == arena.addresses()[1]
    host[6, 2, 3, 1, 31] = 5.0
    assert arena.stores["v_arena"][6, 2, 3, 1, 31].item() == 5.0


def test_k_and_v_cannot_be_replaced():
    arena = Arena(GEOMETRY)
    for name in ("k_arena", "v_arena"):
        with pytest.raises(TypeError):
            arena.stores[name] = mx.zeros(GEOMETRY.cache_of(0).shape)  # type: ignore[index]


def test_a_strided_array_is_refused():
    arena = Arena(GEOMETRY)
    arena.check_contiguous()
    arena._stores["v_arena"] = mx.zeros((3, 7, 4, 2, 32)).swapaxes(0, 1)
    assert arena.stores["v_arena"].shape == GEOMETRY.cache_of(0).shape
    with pytest.raises(ArenaError, match=r"v_arena has shape .* expected row-major \(7, 3, 4, 2, 32\)"):
        arena.check_contiguous()


def test_an_array_of_another_shape_is_refused():
    arena = Arena(GEOMETRY)
    arena._stores["k_arena"] = mx.zeros((7, 3, 4, 2, 33))
    with pytest.raises(ArenaError, match="k_arena has shape"):
        arena.check_contiguous()


def test_more_than_the_machine_has_is_refused_before_allocating(monkeypatch):
    def no_zeros(*_args, **_kwargs):
        pytest.fail("allocated")

    monkeypatch.setattr(mx, "zeros", no_zeros)
    geometry = GEOMETRY.with_blocks(10**11)
    with pytest.raises(ArenaError, match="exceeds this machine's memory") as error:
        Arena(geometry)
    assert str(geometry.size_bytes) in str(error.value)
    assert "cache.num_blocks" in str(error.value)


def test_more_than_one_buffer_holds_is_refused(monkeypatch):
    monkeypatch.setattr(mx, "device_info", lambda: {"max_buffer_length": GEOMETRY.size_bytes // 2 - 1})
    with pytest.raises(ArenaError, match=f"largest buffer of {GEOMETRY.size_bytes // 2 - 1} bytes"):
        Arena(GEOMETRY)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_buffer_length": GEOMETRY.size_bytes // 2})
    Arena(GEOMETRY)


def test_a_refusal_by_mlx_names_the_sizes(monkeypatch):
    def no_memory(*_args, **_kwargs):
        raise RuntimeError("[malloc] Unable to allocate")

    monkeypatch.setattr(mx, "eval", no_memory)
    with pytest.raises(
        ArenaError, match=r"cannot allocate the KV arena of 43008 bytes .*7 x 3 x 4 x 2 x 32 f32.*malloc"
    ):
        Arena(GEOMETRY)
