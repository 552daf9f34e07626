"""RoPE, cache writes and attention against mx.fast.rope and a NumPy float64 attention, token by token."""

from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlxr.compiler.artifact import DType
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES, as_bits
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.arena_blocks import copy_blocks
from mlxr.runtime.hosts.mlx_ops.cache_rows import decode_rows, encode_rows
from mlxr_tests.kv_arena import kv_arena
from mlxr_tests.reference_ops import evaluate
from mlxr_tests.specs import floats, random_array
from mlxr_tests.tolerances import check_op

Numbers = npt.NDArray[np.float64]
BLOCK, LAYERS, KV_HEADS, HEAD_DIM, BLOCKS, LAYER = 4, 3, 2, 8, 11, 1
TABLES = [[7, 2, 9], [5, 0, 3]]
CONTEXTS = [9, 6]
STARTS = [0, 3, 4]
"""Three new tokens of the first sequence, one of the second."""
POSITIONS = [6, 7, 8, 5]
ROTARY = {"rotary_dim": 6, "rope_layout": "half", "rope_scale": 1.0}
FREQUENCIES = [1.0, 0.25, 0.0625]
NO_TEMPERATURE = {
    "temperature_beta": None,
    "temperature_context": None,
    "temperature_first": 0,
    "gate": None,
    "gate_first": 0,
    "gate_size": 0,
    "norm_eps": None,
    "norm_scope": "head",
    "norms_values": False,
    "values_from_keys": False,
}


def scores(window: int | None, softcap: float | None = None) -> dict[str, Any]:
    no_alibi = {"alibi": None, "alibi_heads": 0, "alibi_first": 0}
    return {"scale": 0.7, "window": window, "softcap": softcap, "chunked": False, "v_dim": None} | no_alibi


def arena_of(layout: Any = "block", dtype: str = "f32", mode: Any = "paged") -> Arena:
    sizes = (BLOCKS, LAYERS, BLOCK, KV_HEADS, HEAD_DIM)
    return Arena(kv_arena(layout, mode, *sizes, DType(dtype), 3, 2, 12))


def block(arena: Arena, array: mx.array, block_id: int, layer: int = LAYER) -> Numbers:
    whole = floats(decode_rows(as_bits(array), str(arena.geometry.cache_type)))
    one: Numbers = (whole if arena.geometry.layout == "block" else whole.swapaxes(0, 1))[block_id, layer]
    return one.astype(np.float64)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [40, 16])
def test_rope_against_mlx(dtype: str, layout: str, rotary_dim: int) -> None:
    x = random_array(np.random.default_rng(0), (5, 3 * 40), dtype)
    frequencies = 100.0 ** (-2 * np.arange(rotary_dim // 2) / rotary_dim)
    attrs = {"num_heads": 3, "head_dim": 40, "rotary_dim": rotary_dim, "rope_layout": layout, "rope_scale": 1.0}
    positions = [7, 0, 1000, 8, 3]
    inputs = {"x": x, "positions": mx.array(positions), "frequencies": mx.array(frequencies.astype(np.float32))}
    out = evaluate("rope", inputs, attrs)["out"]
    assert out.dtype == MLX_DTYPES[dtype] and out.shape == x.shape
    for token, position in enumerate(positions):
        heads = x[token].astype(mx.float32).reshape(1, 3, 1, 40)
        options: dict[str, Any] = {"traditional": layout == "interleaved", "base": 100.0, "scale": 1.0}
        want = mx.fast.rope(heads, rotary_dim, offset=position, **options)
        # Angles near 1000 are fp32 numbers 6e-5 apart, and MLX takes its own powers of the base.
        np.testing.assert_allclose(
            floats(out[token]), floats(want).reshape(-1), rtol=1e-2 if dtype == "bf16" else 0, atol=4e-4
        )


@pytest.mark.parametrize(("layout", "dtype"), [*product(["block", "layer"], ["f32", "f16", "bf16", "q8"])])
def test_cache_write_stores_in_place(layout: str, dtype: str) -> None:
    arena = arena_of(layout, dtype)
    rng = np.random.default_rng(0)
    k, v = (random_array(rng, (3, KV_HEADS * HEAD_DIM), "f32") for _ in "kv")
    slots = [4 * BLOCK + 3, 0, 10 * BLOCK + 2]
    attrs = {"num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "v_dim": None}
    inputs = {
        "k": k,
        "v": v,
        "slots": mx.array(slots),
        "k_arena": arena.stores["k_arena"],
        "v_arena": arena.stores["v_arena"],
    }
    before = (arena.addresses(), arena.stores["k_arena"], arena.stores["v_arena"])
    evaluate("cache_write", inputs, attrs, arena, LAYER)
    assert (
        arena.addresses() == before[0] and arena.stores["k_arena"] is before[1] and arena.stores["v_arena"] is before[2]
    )
    for array, new in ((arena.stores["k_arena"], k), (arena.stores["v_arena"], v)):
        stored = floats(decode_rows(encode_rows(new.reshape(3, KV_HEADS, HEAD_DIM), dtype), dtype))
        for token, slot in enumerate(slots):
            np.testing.assert_array_equal(block(arena, array, slot // BLOCK)[slot % BLOCK], stored[token])
        everything = decode_rows(as_bits(array), dtype)
        assert np.count_nonzero(floats(everything)) == np.count_nonzero(stored), "other elements were written"


def filled(layout: str, dtype: str, mode: str = "paged") -> Arena:
    """An arena of random numbers, huge ones where no sequence may look."""
    arena = arena_of(layout, dtype, mode)
    rng = np.random.default_rng(1)
    slots = mx.arange(BLOCKS * BLOCK)
    for layer in range(LAYERS):
        k, v = (random_array(rng, (BLOCKS * BLOCK, KV_HEADS * HEAD_DIM), "f32") for _ in "kv")
        attrs = {"num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "v_dim": None}
        evaluate("cache_write", {"k": k, "v": v, "slots": slots}, attrs, arena, layer)
    tables = [[0, 1, 2]] if mode == "contiguous" else TABLES
    contexts = CONTEXTS[: len(tables)]
    free = set(range(BLOCKS * BLOCK)) - {
        table[p // BLOCK] * BLOCK + p % BLOCK for table, n in zip(tables, contexts, strict=True) for p in range(n)
    }
    huge = mx.full((len(free), KV_HEADS * HEAD_DIM), 1e4)
    attrs = {"num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "v_dim": None}
    evaluate("cache_write", {"k": huge, "v": huge, "slots": mx.array(sorted(free))}, attrs, arena, LAYER)
    return arena


def attend(
    arena: Arena,
    q: Numbers,
    scale: float,
    window: int | None,
    tables: list[list[int]],
    softcap: float | None = None,
    sinks: Numbers | None = None,
    chunked: bool = False,
) -> Numbers:
    """One token, one head, one key at a time."""
    out = np.zeros_like(q)
    ratio = q.shape[1] // KV_HEADS
    sequence_of = [s for s in range(len(tables)) for _ in range(STARTS[s + 1] - STARTS[s])]
    for token, head in np.ndindex(*q.shape[:2]):
        position, table = POSITIONS[token], tables[sequence_of[token]]
        seen = [p for p in range(position + 1) if window is None or position - p < window]
        if chunked and window is not None:
            seen = [p for p in range(position + 1) if p // window == position // window]
        keys = [block(arena, arena.stores["k_arena"], table[p // BLOCK])[p % BLOCK, head // ratio] for p in seen]
        values = [block(arena, arena.stores["v_arena"], table[p // BLOCK])[p % BLOCK, head // ratio] for p in seen]
        scores = scale * np.array(keys) @ q[token, head]
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        sink = -np.inf if sinks is None else sinks[head]
        largest = max(scores.max(), sink)
        weights = np.exp(scores - largest)
        out[token, head] = weights / (weights.sum() + np.exp(sink - largest)) @ np.array(values)
    return out


def batch_inputs(arena: Arena) -> dict[str, mx.array]:
    return {
        "positions": mx.array(POSITIONS),
        "query_start": mx.array(STARTS),
        "context_lens": mx.array(CONTEXTS),
        "block_tables": mx.array(TABLES),
        "k_arena": arena.stores["k_arena"],
        "v_arena": arena.stores["v_arena"],
    }


@pytest.mark.parametrize(
    ("layout", "dtype"), [("block", "f32"), ("layer", "f32"), ("block", "bf16"), ("layer", "f16"), ("layer", "q8")]
)
@pytest.mark.parametrize("ratio", [1, 3])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_attention(layout: str, dtype: str, ratio: int, window: int | None) -> None:
    arena, heads = filled(layout, dtype), ratio * KV_HEADS
    q = random_array(np.random.default_rng(2), (4, heads * HEAD_DIM), "f32")
    attrs = {"num_heads": heads, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    out = evaluate("attention", {"q": q} | batch_inputs(arena), attrs | scores(window), arena, LAYER)["out"]
    want = attend(arena, floats(q).astype(np.float64).reshape(4, heads, HEAD_DIM), 0.7, window, TABLES)
    check_op("attention", floats(out), want.reshape(4, -1), "f32")


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_chunks(chunk: int) -> None:
    arena = filled("block", "f32")
    q = random_array(np.random.default_rng(2), (4, 4 * HEAD_DIM), "f32")
    attrs = {"num_heads": 4, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM} | scores(chunk) | {"chunked": True}
    out = evaluate("attention", {"q": q} | batch_inputs(arena), attrs, arena, LAYER)["out"]
    queries = floats(q).astype(np.float64).reshape(4, 4, HEAD_DIM)
    want = attend(arena, queries, 0.7, chunk, TABLES, chunked=True)
    check_op("attention", floats(out), want.reshape(4, -1), "f32")


@pytest.mark.parametrize("ratio", [1, 3])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("sink", [False, True])
def test_soft_caps_and_sinks(ratio: int, window: int | None, softcap: float | None, sink: bool) -> None:
    arena, heads = filled("block", "f32"), ratio * KV_HEADS
    q = random_array(np.random.default_rng(2), (4, heads * HEAD_DIM), "f32")
    sinks = random_array(np.random.default_rng(3), (heads,), "f32", 3.0)
    attrs = {"num_heads": heads, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    inputs = {"q": q} | batch_inputs(arena) | ({"sinks": sinks} if sink else {})
    out = evaluate("attention", inputs, attrs | scores(window, softcap), arena, LAYER)["out"]
    queries = floats(q).astype(np.float64).reshape(4, heads, HEAD_DIM)
    want = attend(arena, queries, 0.7, window, TABLES, softcap, floats(sinks).astype(np.float64) if sink else None)
    check_op("attention", floats(out), want.reshape(4, -1), "f32")


def test_temperature_grows_in_steps() -> None:
    x = random_array(np.random.default_rng(0), (4, 6), "f32")
    inputs = {"x": x, "positions": mx.array([0, 3, 4, 11])}
    for first, grown in ((0, [1, 1, 2, 3]), (1, [1, 2, 2, 4])):
        out = evaluate("temperature", inputs, {"beta": 0.5, "original_context": 4, "first_position": first})["out"]
        factors = 1 + 0.5 * np.log(np.array(grown))
        check_op("temperature", floats(out), floats(x).astype(np.float64) * factors[:, None], "f32")


def test_rope_scale_multiplies_what_is_rotated() -> None:
    x = random_array(np.random.default_rng(0), (2, 2 * HEAD_DIM), "f32")
    inputs = {"x": x, "positions": mx.array([3, 9]), "frequencies": mx.array(FREQUENCIES)}
    out = evaluate("rope", inputs, {"num_heads": 2, "head_dim": HEAD_DIM} | ROTARY | {"rope_scale": 1.25})["out"]
    want = rotated(floats(x).astype(np.float64).reshape(2, 2, HEAD_DIM), [3, 9])
    want[..., :6] *= 1.25
    check_op("rope", floats(out), want.reshape(2, -1), "f32")


def test_fused_attention_with_all_that_layers_differ_in() -> None:
    """No rotation, a temperature, sinks and a soft cap; and a scaled rotation."""
    qkv = random_array(np.random.default_rng(3), (4, 10 * HEAD_DIM), "f32")
    heads = floats(qkv).astype(np.float64).reshape(4, 10, HEAD_DIM)
    sinks = random_array(np.random.default_rng(5), (6,), "f32")
    temperature = {
        "temperature_beta": 0.5,
        "temperature_context": 4,
        "temperature_first": 0,
        "gate": None,
        "gate_first": 0,
        "gate_size": 0,
        "norm_eps": None,
        "norm_scope": "head",
        "norms_values": False,
        "values_from_keys": False,
    }
    growth = 1 + 0.5 * np.log(1 + np.array(POSITIONS) // 4)[:, None, None]
    for rotary, scale in ((0, 1.0), (6, 1.25)):
        arena = filled("block", "f32")
        inputs = {"qkv": qkv, "slots": mx.array(SLOTS), "sinks": sinks} | batch_inputs(arena)
        inputs |= {"frequencies": mx.array(FREQUENCIES)} if rotary else {}
        attrs = FUSED | {"rotary_dim": rotary, "rope_scale": scale}
        evaluate("rope_cache_write", inputs, attrs, arena, LAYER)
        out = evaluate("rope_attention", inputs, attrs | temperature | scores(None, 2.0), arena, LAYER)["out"]
        q = rotated(heads[:, :6], POSITIONS) if rotary else heads[:, :6].copy()
        q[..., :rotary] *= scale
        want = attend(arena, q * growth, 0.7, None, TABLES, 2.0, floats(sinks).astype(np.float64))
        check_op("attention", floats(out), want.reshape(4, -1), "f32")
        key = rotated(heads[:, 6:8], POSITIONS)[3] if rotary else heads[3, 6:8].copy()
        key[..., :rotary] *= scale
        check_op("stored", block(arena, arena.stores["k_arena"], SLOTS[3] // BLOCK)[SLOTS[3] % BLOCK], key, "f32")


def test_attention_rounds_to_the_type_of_q() -> None:
    arena = filled("block", "bf16")
    q = random_array(np.random.default_rng(2), (4, 4 * HEAD_DIM), "bf16")
    attrs = {"num_heads": 4, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    out = evaluate("attention", {"q": q} | batch_inputs(arena), attrs | scores(None), arena, LAYER)["out"]
    want = attend(arena, floats(q).astype(np.float64).reshape(4, 4, HEAD_DIM), 0.7, None, TABLES)
    assert out.dtype == mx.bfloat16
    check_op("attention", floats(out), want.reshape(4, -1), "bf16")


def test_contiguous_attention_needs_no_table() -> None:
    arena = filled("block", "f32", "contiguous")
    q = random_array(np.random.default_rng(2), (3, 4 * HEAD_DIM), "f32")
    inputs = batch_inputs(arena) | {
        "q": q,
        "positions": mx.array(POSITIONS[:3]),
        "query_start": mx.array(STARTS[:2]),
        "context_lens": mx.array(CONTEXTS[:1]),
        "block_tables": mx.array([[10, 10, 10]]),
    }
    attrs = {"num_heads": 4, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    out = evaluate("attention", inputs, attrs | scores(None), arena, LAYER)["out"]
    want = attend(arena, floats(q).astype(np.float64).reshape(3, 4, HEAD_DIM), 0.7, None, [[0, 1, 2]])
    check_op("attention", floats(out), want.reshape(3, -1), "f32")


def rotated(x: Numbers, positions: list[int]) -> Numbers:
    """The first 6 elements of each head [tokens, heads, HEAD_DIM] rotated as pairs (i, i + 3)."""
    angles = (np.array(positions)[:, None] * np.array(FREQUENCIES))[:, None, :]
    turned = (x[..., :3] + 1j * x[..., 3:6]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag, x[..., 6:]], -1)


FUSED = {"num_heads": 6, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "v_dim": None} | ROTARY
SLOTS = [2 * BLOCK + 2, 2 * BLOCK + 3, 9 * BLOCK, 1]
"""Where positions 6, 7 and 8 of the first sequence and 5 of the second are."""


@pytest.mark.parametrize(("layout", "dtype"), [("block", "f32"), ("layer", "bf16"), ("block", "q8")])
@pytest.mark.parametrize("window", [None, 4])
def test_prefill_pair(layout: str, dtype: str, window: int | None) -> None:
    arena, old = filled(layout, dtype), filled(layout, dtype)
    qkv = random_array(np.random.default_rng(3), (4, 10 * HEAD_DIM), "f32")
    heads = floats(qkv).astype(np.float64).reshape(4, 10, HEAD_DIM)
    inputs = {"qkv": qkv, "frequencies": mx.array(FREQUENCIES), "slots": mx.array(SLOTS), "token": arena.token}
    inputs |= batch_inputs(arena)
    made = evaluate("rope_cache_write", inputs, FUSED, arena, LAYER)
    assert made.keys() == {"token"}
    keys = rotated(heads[:, 6:8], POSITIONS)
    for token, slot in enumerate(SLOTS):
        for array, new in ((arena.stores["k_arena"], keys[token]), (arena.stores["v_arena"], heads[token, 8:])):
            stored = decode_rows(encode_rows(mx.array(new.astype(np.float32)), dtype), dtype)
            check_op("stored", block(arena, array, slot // BLOCK)[slot % BLOCK], floats(stored), dtype)
    for layer in (0, 2):
        for block_id in range(BLOCKS):
            np.testing.assert_array_equal(
                block(arena, arena.stores["k_arena"], block_id, layer),
                block(old, old.stores["k_arena"], block_id, layer),
            )
    out = evaluate("rope_attention", inputs, FUSED | NO_TEMPERATURE | scores(window), arena, LAYER)
    want = attend(arena, rotated(heads[:, :6], POSITIONS), 0.7, window, TABLES)
    assert out.keys() == {"out", "token"}
    check_op("attention", floats(out["out"]), want.reshape(4, -1), "f32")


@pytest.mark.parametrize("activation", ["f32", "bf16"])
def test_decode_op_is_the_prefill_pair_of_one_token_each(activation: str) -> None:
    one, other = filled("block", "bf16"), filled("block", "bf16")
    qkv = random_array(np.random.default_rng(4), (2, 10 * HEAD_DIM), activation)
    inputs = {"qkv": qkv, "frequencies": mx.array(FREQUENCIES), "slots": mx.array(SLOTS[2:])}
    inputs |= {"positions": mx.array([8, 5]), "context_lens": mx.array(CONTEXTS), "block_tables": mx.array(TABLES)}
    attrs = FUSED | NO_TEMPERATURE | scores(4)
    out = evaluate("rope_write_attention", inputs, attrs, one, LAYER)["out"]
    evaluate("rope_cache_write", inputs, FUSED, other, LAYER)
    want = evaluate("rope_attention", inputs | {"query_start": mx.array([0, 1, 2])}, attrs, other, LAYER)["out"]
    assert out.dtype == MLX_DTYPES[activation]
    np.testing.assert_array_equal(floats(out), floats(want))
    for name in one.stores:
        np.testing.assert_array_equal(floats(one.stores[name]), floats(other.stores[name]))


@pytest.mark.parametrize(("layout", "dtype"), [("block", "f32"), ("layer", "bf16"), ("layer", "q8")])
def test_copy_blocks(layout: str, dtype: str) -> None:
    arena, old = filled(layout, dtype), filled(layout, dtype)
    copy_blocks(arena, [])
    copy_blocks(arena, [(7, 1), (7, 4), (2, 10)])
    source_of = {**{b: b for b in range(BLOCKS)}, 1: 7, 4: 7, 10: 2}
    for (block_id, source), layer in product(source_of.items(), range(LAYERS)):
        np.testing.assert_array_equal(
            block(arena, arena.stores["k_arena"], block_id, layer), block(old, old.stores["k_arena"], source, layer)
        )
        np.testing.assert_array_equal(
            block(arena, arena.stores["v_arena"], block_id, layer), block(old, old.stores["v_arena"], source, layer)
        )
