"""Loading an artifact's weights: packing, conversion, GGUF's row order, memory, and what does not match."""

import re
import sys
import threading
import tracemalloc
from dataclasses import replace
from math import prod
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from mlxr.compiler.artifact import DType, Recipe, Rows, TensorSource, WeightPlan
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.hosts.cuda.device_array import filled_on_device
from mlxr.runtime.weights import load_weights, open_weights, weight_file

TESTS = Path(__file__).parents[2]
STORYTELLER = TESTS / "data/storyteller"
STORYTELLER_Q8_0 = TESTS.parent / "models/storyteller/storyteller-q8_0.gguf"
GOLDEN = TESTS / "data/golden"
LOADER = sys.modules["mlxr.runtime.weights.load_weights"]  # the package has a function of that name


def tensor(name, shape, safetensors, ggml, heads=None):
    """A tensor; with heads, the GGUF file has the rotary pairs of each head side by side."""
    size = shape[0] // heads if heads else 0
    rows = Rows(0, (heads, 2, size // 2), (size, 1, 2)) if heads else None
    return TensorSource(name, shape, (Recipe(safetensors),), (Recipe(ggml, rows=rows),))


def storyteller_weights(dtype=DType.F32, layers=6):
    def weight(name, *parts):
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        return WeightPlan(name, shape, dtype, parts)

    def source(name, shape, hf, ggml, heads=None):
        return tensor(name, shape, f"{hf}.weight", f"{ggml}.weight", heads)

    weights = [
        weight("embedding", source("embedding", (4096, 512), "model.embed_tokens", "token_embd")),
        weight("norm", source("norm", (512,), "model.norm", "output_norm")),
    ]
    for i in range(layers):
        hf, ggml = f"model.layers.{i}", f"blk.{i}"
        weights += [
            weight(
                f"{i}.qkv",
                source(f"layers.{i}.q", (512, 512), f"{hf}.self_attn.q_proj", f"{ggml}.attn_q", 8),
                source(f"layers.{i}.k", (128, 512), f"{hf}.self_attn.k_proj", f"{ggml}.attn_k", 2),
                source(f"layers.{i}.v", (128, 512), f"{hf}.self_attn.v_proj", f"{ggml}.attn_v"),
            ),
            weight(f"{i}.o", source(f"layers.{i}.o", (512, 512), f"{hf}.self_attn.o_proj", f"{ggml}.attn_output")),
            weight(
                f"{i}.gate_up",
                source(f"layers.{i}.gate", (1280, 512), f"{hf}.mlp.gate_proj", f"{ggml}.ffn_gate"),
                source(f"layers.{i}.up", (1280, 512), f"{hf}.mlp.up_proj", f"{ggml}.ffn_up"),
            ),
            weight(f"{i}.down", source(f"layers.{i}.down", (512, 1280), f"{hf}.mlp.down_proj", f"{ggml}.ffn_down")),
            weight(f"{i}.norm1", source(f"layers.{i}.norm1", (512,), f"{hf}.input_layernorm", f"{ggml}.attn_norm")),
            weight(
                f"{i}.norm2", source(f"layers.{i}.norm2", (512,), f"{hf}.post_attention_layernorm", f"{ggml}.ffn_norm")
            ),
        ]
    return weights


def tiny(name, *rows, dtype=DType.F32):
    parts = tuple(tensor(f"x.{key}", (count, 4), key, key) for key, count in rows)
    return WeightPlan(name, (sum(count for _, count in rows), 4), dtype, parts)


@pytest.fixture
def pair(tmp_path):
    path = tmp_path / "pair.safetensors"
    values = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": -np.arange(8, dtype=np.float32).reshape(2, 4)}
    save_file(values, path)
    return path


def norm(x):
    return float(np.linalg.norm(x.astype(np.float64)))


def test_safetensors_weights_are_exact_and_packed_in_order():
    loaded = load_weights(storyteller_weights(DType.BF16), [], STORYTELLER)
    truth = mx.load(str(STORYTELLER / "model.safetensors"))
    for weight in storyteller_weights():
        expected = mx.concatenate([truth[part.safetensors[0].tensor] for part in weight.parts])
        assert loaded[weight.name].dtype == mx.bfloat16
        assert mx.array_equal(loaded[weight.name], expected), weight.name


def test_gguf_weights_agree_with_safetensors_to_q8_0():
    exact = load_weights(storyteller_weights(), [], STORYTELLER)
    loaded = load_weights(storyteller_weights(), [], STORYTELLER_Q8_0)
    for weight in storyteller_weights():
        row = 0
        for part in weight.parts:  # each on its own: a permuted one would differ by about 1.4 and be hidden by others
            rows = slice(row, row + part.shape[0])
            a, b = np.array(exact[weight.name])[rows], np.array(loaded[weight.name])[rows]
            assert norm(a - b) / norm(a) < 0.01, part.name
            row += part.shape[0]


def test_unpermute_is_needed_for_the_agreement():
    (weight,) = (weight for weight in storyteller_weights() if weight.name == "0.qkv")
    as_it_lies = tuple(replace(part, gguf=(replace(part.gguf[0], rows=None),)) for part in weight.parts)
    weights = [replace(weight, parts=as_it_lies)]
    exact = np.array(load_weights(weights, [".*"], STORYTELLER)["0.qkv"])
    loaded = np.array(load_weights(weights, [".*"], STORYTELLER_Q8_0)["0.qkv"])
    assert norm(exact[:512] - loaded[:512]) / norm(exact[:512]) > 0.5
    assert norm(exact[640:] - loaded[640:]) / norm(exact[640:]) < 0.01


@pytest.mark.parametrize("slab", [1, 40, 4000])
def test_unpermute_with_slabs_smaller_than_a_head(monkeypatch, slab):
    weights = [weight for weight in storyteller_weights() if weight.name == "0.qkv"]
    whole = load_weights(weights, [".*"], STORYTELLER_Q8_0)["0.qkv"]
    monkeypatch.setattr(LOADER, "SLAB_ELEMENTS", slab)
    assert mx.array_equal(load_weights(weights, [".*"], STORYTELLER_Q8_0)["0.qkv"], whole)


def test_unpermute_of_a_bias(tmp_path):
    path = tmp_path / "bias.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("q.bias", np.array([0, 2, 1, 3, 10, 12, 11, 13], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = tensor("q.bias", (8,), "-", "q.bias", 2)
    loaded = load_weights([WeightPlan("b", (8,), DType.F32, (source,))], [], path)["b"]
    assert loaded.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K_M"])
def test_quantised_golden_models_are_near_the_f32_one(kind):
    source = tensor("q", (256, 256), "-", "blk.1.attn_q.weight", 4)
    weights = [WeightPlan("q", (256, 256), DType.F32, (source,))]
    exact, near = (np.array(load_weights(weights, [".*"], GOLDEN / f"tiny-{k}.gguf")["q"]) for k in ("f32", kind))
    assert norm(exact - near) / norm(exact) < {"F16": 1e-3, "Q8_0": 0.01, "Q4_K_M": 0.1}[kind]


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_types(pair, dtype):
    loaded = load_weights([tiny("w", ("a", 3), ("b", 2), dtype=dtype)], [], pair)["w"]
    assert loaded.dtype == {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}[dtype]
    assert loaded.astype(mx.float32).tolist()[2:4] == [[8, 9, 10, 11], [0, -1, -2, -3]]


def test_one_tensor_may_serve_two_weights(pair):
    loaded = load_weights([tiny("w", ("a", 3)), tiny("v", ("b", 2), ("a", 3))], [], pair)
    assert mx.array_equal(loaded["w"], loaded["v"][2:])


def loading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("load weights")]


def test_progress_counts_every_byte(monkeypatch):
    monkeypatch.setattr(LOADER, "SLAB_ELEMENTS", 1 << 16)
    calls = []
    weights = storyteller_weights(DType.F16)
    load_weights(weights, [], STORYTELLER, lambda done, total: calls.append((done, total)))
    total = sum(2 * prod(weight.shape) for weight in weights)
    assert calls[-1] == (total, total)
    assert len(calls) > 100 and calls == sorted(calls)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_threads_do_not_show(monkeypatch, dtype):
    """Weights in small slabs by many threads; and arrays that MLX reads from a stream, as on an NVIDIA GPU."""
    monkeypatch.setattr(LOADER, "SLAB_ELEMENTS", 1 << 12)
    monkeypatch.setattr(LOADER, "usable_cpus", lambda: 1)
    weights = [*storyteller_weights(dtype)[:3], storyteller_weights(dtype)[-1]]
    expected = load_weights(weights, [".*"], STORYTELLER)
    monkeypatch.setattr(LOADER, "usable_cpus", lambda: 40)
    for make in (LOADER.in_place, filled_on_device):
        found = load_weights(weights, [".*"], STORYTELLER, make=make)
        for name, array in expected.items():
            assert found[name].dtype == array.dtype and mx.array_equal(found[name], array), name
        assert not loading_threads()


def test_a_load_that_is_broken_off_leaves_nothing_running(monkeypatch):
    monkeypatch.setattr(LOADER, "SLAB_ELEMENTS", 1 << 10)
    monkeypatch.setattr(LOADER, "usable_cpus", lambda: 8)

    def fail(done, total):
        assert loading_threads()
        if done > total // 10:
            raise KeyboardInterrupt

    for make in (LOADER.in_place, filled_on_device):
        with pytest.raises(KeyboardInterrupt):
            load_weights(storyteller_weights(DType.F16), [], STORYTELLER, fail, make)
        assert not loading_threads()


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("path", [STORYTELLER, STORYTELLER_Q8_0], ids=["safetensors", "gguf"])
def test_memory_stays_near_the_final_size(monkeypatch, dtype, path):
    monkeypatch.setattr(LOADER, "usable_cpus", lambda: 2)
    weights = storyteller_weights(dtype)
    total = sum(dtype.size_bytes * prod(weight.shape) for weight in weights)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    tracemalloc.start()
    loaded = load_weights(weights, [], path)
    _, numpy_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert mx.get_peak_memory() - before < 1.02 * total
    assert numpy_peak < 16 * 4 * weight_file.SLAB_ELEMENTS  # a few temporaries of slabs; far from a large model
    del loaded


def test_a_slab_bounds_the_temporaries(monkeypatch):
    monkeypatch.setattr(LOADER, "SLAB_ELEMENTS", 1 << 14)
    monkeypatch.setattr(LOADER, "usable_cpus", lambda: 2)
    weights = [storyteller_weights(DType.F16)[0]]
    open_weights(STORYTELLER_Q8_0)
    tracemalloc.start()
    load_weights(weights, [".*"], STORYTELLER)
    _, numpy_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert numpy_peak < 2**20 < 2 * prod(weights[0].shape)


def test_missing_tensors_are_listed():
    weights = [*storyteller_weights(), *(tiny(f"n{i}", (f"none.{i}", 2)) for i in range(10))]
    with pytest.raises(WeightsError) as caught:
        load_weights(weights, [], STORYTELLER)
    message = str(caught.value)
    assert message.startswith(
        f"{STORYTELLER / 'model.safetensors'}: lacks 10 of the model's 66 tensors: 'none.0' (x.none.0)"
    )
    assert "'none.7' (x.none.7) and 2 more" in message and "none.8" not in message
    assert "another model" not in message


def test_weights_of_another_model_by_name(pair):
    with pytest.raises(WeightsError, match="lacks 56 of the model's 56 tensors") as caught:
        load_weights(storyteller_weights(), [], pair)
    assert "it holds, without use for the model: 'a', 'b'; these look like weights of another model" in str(
        caught.value
    )


def test_weights_of_another_model_by_shape():
    with pytest.raises(WeightsError, match="these tensors have another shape or type than the model") as caught:
        load_weights(storyteller_weights(layers=2), [], GOLDEN / "tiny-Q8_0.gguf")
    assert "and 12 more; these look like weights of another model: `mlxr run " in str(caught.value)


def test_a_wrong_shape(pair):
    with pytest.raises(
        WeightsError, match=re.escape("another shape or type than the model's: 'a' (x.a) got [3, 4], expected [5, 4]")
    ) as caught:
        load_weights([tiny("w", ("a", 5)), tiny("v", ("b", 2))], [], pair)
    assert "another model" not in str(caught.value)


def test_extra_tensors_are_refused_unless_ignored(pair):
    with pytest.raises(WeightsError, match="holds tensors that the model has no use for: 'b'; the spec may lack"):
        load_weights([tiny("w", ("a", 3))], ["c", "b.", ".b"], pair)
    assert set(load_weights([tiny("w", ("a", 3))], ["[b-z]"], pair)) == {"w"}


def test_integers_are_no_weights(tmp_path):
    save_file({"a": np.ones((3, 4), np.int32)}, tmp_path / "x.safetensors")
    with pytest.raises(WeightsError, match=re.escape("'a' (x.a) is of type I32, which cannot be read as weights")):
        load_weights([tiny("w", ("a", 3))], [], tmp_path)


def test_a_number_that_does_not_fit(tmp_path):
    values = np.ones((3, 4), np.float32)
    values[1, 2] = -65536
    save_file({"a": values}, tmp_path / "x.safetensors")
    for make in (LOADER.in_place, filled_on_device):
        with pytest.raises(
            WeightsError, match=r"tensor 'a' \(x\.a\): the number 65536 is beyond the largest one of f16"
        ):
            load_weights([tiny("w", ("a", 3), dtype=DType.F16)], [], tmp_path, make=make)
    assert load_weights([tiny("w", ("a", 3), dtype=DType.BF16)], [], tmp_path)["w"][1, 2].item() == -65536
