"""Rows of q8 and q4 caches as kernels write them, to the bit, extremes and what is no number included."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import KEYS_AND_VALUES, DType
from mlxr.compiler.targets.metal.kernels.attend import AttendKernel
from mlxr.compiler.targets.metal.kernels.rope_cache_write import RopeCacheWriteKernel
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES, as_bits
from mlxr.runtime.hosts.mlx_ops.cache_rows import decode_rows, encode_rows
from mlxr_tests.few import few
from mlxr_tests.kernel_bench import run_kernel
from mlxr_tests.kv_arena import kv_arena

pytestmark = pytest.mark.usefixtures("kernel_host")

BLOCK, BLOCKS, LAYERS, LAYER = 2, 4, 3, 1
KINDS = {"q8": ("q8", "q8"), "q4": ("q4_keys", "q4")}
"""Types of keys and of values."""


def geometry(head_dim, kv_heads, cache):
    arena = kv_arena(
        layout="block",
        mode="paged",
        num_blocks=BLOCKS,
        num_layers=LAYERS,
        block_size=BLOCK,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=DType.Q8,
        max_blocks_per_sequence=8,
        max_sequences=BLOCKS,
        context=BLOCK * 8,
    )
    return arena.with_cache(DType(cache)).cache_of(LAYER)


def fields(head_dim, kv_heads, num_heads, activation, cache="q8"):
    return {
        "arena": geometry(head_dim, kv_heads, cache),
        "num_heads": num_heads,
        "activation": DType(activation),
        "frequencies": (),
        "rotary_dim": 0,
        "rope_layout": "half",
        "own_keys": True,
        "rope_scale": 1.0,
    }


def write(kernel, qkv, slots, grid):
    """K and V of the layer by slot, as bits, and that nothing else changed; plus the kernel's results."""
    arena = kernel.arena
    k, v = mx.full(arena.shape, -1, dtype=mx.int8), mx.full(arena.value_shape, 255, dtype=mx.uint8)
    v = v if kernel.mixed else v.view(mx.int8)
    count = np.array(slots, dtype=np.int32)
    inputs = {
        "qkv": qkv,
        "positions": mx.zeros((len(slots),), dtype=mx.int32),
        "slots": mx.array(count),
        "block_tables": mx.zeros((len(slots), 8), dtype=mx.int32),
        "layer": mx.array(np.array([LAYER] + [0] * 7, dtype=np.uint32)),
        "token": mx.zeros((8,), dtype=mx.uint32),
        "k_arena": k,
        "v_arena": v,
    }
    mx.eval(*inputs.values())
    shapes = {"token_out": (8,), "out": (len(slots), kernel.num_heads * kernel.head_dim)}
    outputs = run_kernel(kernel, inputs, shapes, grid, in_place=KEYS_AND_VALUES)
    found = []
    for array, elements in ((k, arena.row_elements), (v, arena.value_elements)):
        bits = as_bits(array).reshape(BLOCKS, LAYERS, BLOCK, arena.num_kv_heads, elements)
        untouched = np.ones((BLOCKS, LAYERS, BLOCK), dtype=bool)
        untouched[count // BLOCK, LAYER, count % BLOCK] = False
        assert (bits[untouched] == 0xFF).all(), "a row that is nobody's was written"
        found.append(bits[count // BLOCK, LAYER, count % BLOCK])
    return found, outputs


def scales(bits):
    """The scales of rows of bits."""
    return np.ascontiguousarray(bits[..., -4:]).view(np.float32)[..., 0]


def extremes(head_dim):
    """Rows [8, head_dim]: usual, zeros, an end, halves between steps, huge, tiny, smallest, the start of a group."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((8, head_dim)).astype(np.float32)
    rows[1] = 0.0
    rows[2] = 0.0
    rows[2, head_dim - 1] = -3.0
    rows[3] = np.arange(head_dim) % 127 + 0.5
    rows[3, 0] = 127.0
    rows[4] *= 1e37
    rows[5] *= 1e-30
    rows[6] *= 1e-43
    rows[7] = 0.0
    rows[7, head_dim - 32] = -3.0  # which, mixed, is 32 equal numbers
    return rows


SIZES = [(32, 1, "q8"), (40, 2, "q8"), (128, 3, "q8"), (256, 2, "q8"), (136, 1, "q8"), (32, 1, "q4"), (160, 3, "q4")]


@pytest.mark.parametrize(("head_dim", "kv_heads", "cache"), SIZES)
def test_written_to_the_bit(head_dim, kv_heads, cache):
    kernel = RopeCacheWriteKernel("rope_cache_write", **fields(head_dim, kv_heads, kv_heads, "f32", cache))
    rows = extremes(head_dim)
    keys = np.stack([np.roll(rows, h, axis=0) for h in range(kv_heads)], axis=1)
    values = -np.flip(keys, axis=0)
    queries = np.full_like(keys, np.nan)
    qkv = mx.array(np.concatenate([queries, keys, values], axis=1).reshape(8, -1))
    found, _ = write(kernel, qkv, [6, 1, 0, 7, 2, 3, 5, 4], (8, 1, 1))
    for bits, numbers, dtype in zip(found, (keys, values), KINDS[cache], strict=True):
        assert (bits == encode_rows(mx.array(numbers), dtype)).all()


@pytest.mark.parametrize("activation", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_with_what_is_no_number(bad, activation):
    """Their scale is NaN, and other rows are as they are."""
    kernel = RopeCacheWriteKernel("rope_cache_write", **fields(40, 2, 2, activation))
    numbers = np.random.default_rng(1).standard_normal((3, 6, 40)).astype(np.float32)
    numbers[1, 2, 39] = bad  # token 1, key head 0
    numbers[2, 5, 0] = bad  # token 2, value head 1
    qkv = mx.array(numbers.reshape(3, -1)).astype(MLX_DTYPES[activation])
    found, _ = write(kernel, qkv, [4, 2, 1], (3, 1, 1))
    heads = qkv.reshape(3, 6, 40).astype(mx.float32)
    for bits, part, row in zip(found, (slice(2, 4), slice(4, 6)), ((1, 0), (2, 1)), strict=True):
        spoilt = np.isnan(scales(bits))
        assert [tuple(at) for at in np.argwhere(spoilt)] == [row]
        assert (bits[~spoilt] == encode_rows(heads[:, part], "q8")[~spoilt]).all()


DECODED = [
    (32, 1, 1, "q8"),
    (40, 2, 6, "q8"),
    (128, 2, 8, "q8"),
    (256, 1, 8, "q8"),
    (96, 2, 6, "q4"),
    (256, 1, 8, "q4"),
]


@pytest.mark.parametrize(("head_dim", "kv_heads", "num_heads", "cache"), few(DECODED, DECODED[1:5:3]))
def test_decode_stores_the_same_rows(head_dim, kv_heads, num_heads, cache):
    """The fused kernel finds scales its own way; a first token's result is its value as it was stored."""
    kernel = AttendKernel(
        "attend",
        **fields(head_dim, kv_heads, num_heads, "f32", cache),
        scale=1e-3,
        window=None,
        softcap=None,
        chunked=False,
        temperature=None,
        sinks=None,
        simdgroups=4,
        partition=0,
        max_partitions=0,
        heads=num_heads // kv_heads,
        unroll=1,
    )
    numbers = extremes(head_dim)[[0, 1, 2, 3, 5, 6, 7]]
    qkv = np.concatenate([np.roll(numbers, h, axis=0) for h in range(num_heads + 2 * kv_heads)], axis=1)
    found, outputs = write(kernel, mx.array(qkv), [6, 1, 0, 7, 2, 3, 4], (kv_heads, 7, 1))
    heads = qkv.reshape(7, -1, head_dim)
    parts = slice(num_heads, -kv_heads), slice(-kv_heads, None)
    for bits, part, dtype in zip(found, parts, KINDS[cache], strict=True):
        assert (bits == encode_rows(mx.array(heads[:, part].copy()), dtype)).all()
    values = np.array(decode_rows(found[1], cache))
    out = np.array(outputs["out"]).reshape(7, kv_heads, -1, head_dim)
    assert np.allclose(out, values[:, :, None], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_groups_of_q4_with_what_is_no_number(bad):
    """Their scale is NaN, and other groups are as they are."""
    kernel = RopeCacheWriteKernel("rope_cache_write", **fields(64, 2, 2, "f32", "q4"))
    numbers = np.random.default_rng(1).standard_normal((3, 6, 64)).astype(np.float32)
    numbers[1, 4, 40] = bad  # token 1, value head 0, group 1
    found, _ = write(kernel, mx.array(numbers.reshape(3, -1)), [4, 2, 1], (3, 1, 1))
    whole = np.isfinite(np.array(decode_rows(found[1], "q4"))).reshape(3, 2, 2, 32)
    assert [tuple(at) for at in np.argwhere(~whole.any(axis=-1))] == [(1, 0, 1)] and whole.sum() == 11 * 32
    want = encode_rows(mx.array(numbers[:, 4:]), "q4")
    assert (found[1][..., :16] == want[..., :16]).all() and (found[1][0] == want[0]).all()
