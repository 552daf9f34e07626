"""The reference host against mlx-lm, on tiny random models written to disk and loaded through our own loader.

mlx-lm sees each sequence whole, without a cache; we see both in chunks, mixed steps and decode steps.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models import llama, qwen2

from mlxr.compiler.artifact import ModelSpec
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr.runtime.weights import load_weights
from mlxr_tests.few import few_of
from mlxr_tests.specs import compiled, floats, small_spec
from mlxr_tests.tolerances import check_logits

Module = Any  # mlx.nn has no annotations
Floats = npt.NDArray[np.floating]
LENGTHS = (21, 14)
STEPS = [(9, 4), (5, 1), *[(1, 1)] * 7, (0, 2)]
"""Tokens of each sequence in each step: two prompts, a chunk beside a token, decode, and one sequence's last chunk."""

BIASES = {"model__attention__qkv_bias": True, "model__attention__output_bias": True}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 16}
CASES: dict[str, dict[str, Any]] = {
    "GQA 1": {"model__attention__num_heads": 3, "model__attention__num_kv_heads": 3},
    "GQA 4": {"model__attention__num_heads": 8, "model__attention__num_kv_heads": 2},
    "GQA 8": {"model__attention__num_heads": 8, "model__attention__num_kv_heads": 1},
    "tied": {"model__tie_embeddings": True},
    "llama3 scaling": {"model__rope__scaling": LLAMA3, "model__rope__theta": 500000.0},
    "linear scaling": {"model__rope__scaling": {"kind": "linear", "factor": 4.0}},
    "small theta": {"model__rope__theta": 10.0},
    "interleaved": {"model__rope__layout": "interleaved"},
    "interleaved llama3": {"model__rope": {"layout": "interleaved", "scaling": LLAMA3}},
    "sliding window": {"model__attention__sliding_window": 6},
    "attention biases": BIASES,
    "MLP biases": {"model__mlp__bias": True},
    "large eps": {"model__norm__eps": 0.5},
    "block of 1": {"cache__block_size": 1},
    "layer-major": {"cache__layout": "layer", "cache__block_size": 8},
}


def llama_model(spec: ModelSpec) -> Module:
    """mlx-lm's model of a spec."""
    m, a = spec.model, spec.model.attention
    scaling = m.rope.scaling.model_dump()
    rope_scaling = {"rope_type": scaling.pop("kind"), **scaling}
    if "original_context" in rope_scaling:
        rope_scaling["original_max_position_embeddings"] = rope_scaling.pop("original_context")
    assert a.qkv_bias == a.output_bias, "mlx-lm has one switch for both"
    windowed = a.sliding_window is not None
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=m.hidden_size,
        num_hidden_layers=m.num_layers,
        intermediate_size=m.mlp.intermediate_size,
        num_attention_heads=a.num_heads,
        rms_norm_eps=m.norm.eps,
        vocab_size=m.vocab_size,
        head_dim=a.head_dim,
        max_position_embeddings=m.context,
        num_key_value_heads=a.num_kv_heads,
        attention_bias=a.qkv_bias,
        mlp_bias=m.mlp.bias,
        rope_theta=m.rope.theta,
        rope_traditional=m.rope.layout == "interleaved",
        rope_scaling=None if rope_scaling["rope_type"] == "none" else rope_scaling,
        tie_word_embeddings=m.tie_embeddings,
        layer_types=["full_attention"] + ["sliding_attention" if windowed else "full_attention"] * (m.num_layers - 1),
        sliding_window=a.sliding_window,
    )
    model = llama.Model(args)
    if windowed:
        # mlx-lm insists on one full layer; ours are all windowed.
        model.model.layers[0].use_sliding = True
    return model


def randomise(model: Module) -> None:
    """Gives every parameter, norms and biases too, random values."""
    rng = np.random.default_rng(0)

    def tensor(path: str, old: mx.array) -> mx.array:
        scale = 1.0 if old.ndim == 1 or "embed" in path else old.shape[1] ** -0.5
        return mx.array((rng.standard_normal(old.shape) * scale + ("norm" in path)).astype(np.float32))

    model.update(tree_map_with_path(tensor, model.parameters()))
    mx.eval(model.parameters())


def save(model: Module, folder: Path) -> Path:
    path = folder / "model.safetensors"
    mx.save_safetensors(str(path), dict(tree_flatten(model.parameters())))
    return path


def prompts(spec: ModelSpec) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, spec.model.vocab_size, length).tolist() for length in LENGTHS]


def theirs(model: Module, spec: ModelSpec) -> list[Floats]:
    """Logits of every token of every sequence."""
    return [floats(model(mx.array([tokens]))[0]) for tokens in prompts(spec)]


def ours(spec: ModelSpec, path: Path, graphs: Literal["source", "fused"] = "source") -> list[Floats]:
    """The same, step by step."""
    artifact = compiled(spec)
    plan = artifact.plan
    weights = load_weights(plan.weights, plan.ignored_tensors, path)
    arena, pager = Arena(plan.arena), Pager.from_geometry(plan.arena)
    fused = graphs == "fused"
    prefill = ReferenceHost(artifact, weights, arena, "prefill" if fused else "source")
    decode = ReferenceHost(artifact, weights, arena, "decode") if fused else prefill
    tokens, ids = prompts(spec), [pager.add_sequence() for _ in LENGTHS]
    rows: list[list[Floats]] = [[] for _ in LENGTHS]
    for counts in STEPS:
        requests = [
            BatchRequest(seq, tokens[seq][pager.length(seq) :][:count], pager.length(seq), "all")
            for seq, count in zip(ids, counts, strict=True)
            if count
        ]
        batch = Batch.build(requests, pager, plan.query_tile)
        pager.take_copies()
        logits = iter(floats((decode if batch.is_decode else prefill).step(batch)))
        for request in requests:
            rows[request.seq_id] += [next(logits) for _ in request.tokens]
    return [np.stack(sequence) for sequence in rows]


def check(got: list[Floats], want: list[Floats]) -> None:
    for number, (mine, other) in enumerate(zip(got, want, strict=True)):
        check_logits(f"sequence {number}", mine, other, "f32")


@pytest.fixture(autouse=True)
def clear_cache() -> Iterator[None]:
    mx.disable_compile()  # for what mlx-lm merges, MLX runs a C++ compiler
    yield
    mx.enable_compile()
    mx.clear_cache()


@pytest.mark.parametrize(("case", "graphs"), few_of(CASES, ["source", "fused"]))
def test_llama(case: str, graphs: Literal["source", "fused"], tmp_path: Path) -> None:
    spec = small_spec(**CASES[case])
    model = llama_model(spec)
    randomise(model)
    check(ours(spec, save(model, tmp_path), graphs), theirs(model, spec))


DISTINCT = ["llama3 scaling", "linear scaling", "small theta", "interleaved", "sliding window", "large eps"]


@pytest.mark.parametrize("case", DISTINCT)
def test_the_comparison_sees_each_property(case: str, tmp_path: Path) -> None:
    model = llama_model(small_spec(**CASES[case]))
    randomise(model)
    with pytest.raises(AssertionError, match="relative error"):
        check(ours(small_spec(), save(model, tmp_path)), theirs(model, small_spec()))


def test_mlx_lms_own_cache_agrees(tmp_path: Path) -> None:
    spec = small_spec()
    model = llama_model(spec)
    randomise(model)
    want = []
    for tokens in prompts(spec):
        cache = model.make_cache() if hasattr(model, "make_cache") else None
        parts = [tokens[:9], *([token] for token in tokens[9:])]
        want.append(np.concatenate([floats(model(mx.array([part]), cache=cache)[0]) for part in parts]))
    check(ours(spec, save(model, tmp_path)), want)


@pytest.mark.parametrize("graphs", ["source", "fused"])
def test_qwen2_has_biases_on_q_k_and_v_alone(graphs: Literal["source", "fused"], tmp_path: Path) -> None:
    attention = {"num_heads": 3, "num_kv_heads": 1, "head_dim": 32, "qkv_bias": True}
    rope = {"theta": 1000000.0}
    spec = small_spec(model__hidden_size=96, model__attention=attention, model__rope=rope, model__norm__eps=1e-6)
    model = qwen2.Model(
        qwen2.ModelArgs(
            model_type="qwen2",
            hidden_size=96,
            num_hidden_layers=2,
            intermediate_size=88,
            num_attention_heads=3,
            rms_norm_eps=1e-6,
            vocab_size=61,
            num_key_value_heads=1,
            tie_word_embeddings=False,
        )
    )
    randomise(model)
    check(ours(spec, save(model, tmp_path), graphs), theirs(model, spec))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_16_bit_weights_are_read_as_they_are(dtype: str, tmp_path: Path) -> None:
    spec = small_spec(weights={"default": dtype})
    model = llama_model(spec)
    randomise(model)
    rounded = tree_map_with_path(
        lambda path, x: (
            x if "norm" in path else x.astype({"bf16": mx.bfloat16, "f16": mx.float16}[dtype]).astype(x.dtype)
        ),
        model.parameters(),
    )
    path = save(model, tmp_path)
    model.update(rounded)
    check(ours(spec, path), theirs(model, spec))


def test_16_bit_activations_and_cache_are_close(tmp_path: Path) -> None:
    spec = small_spec(weights={"default": "bf16"}, activation_dtype="bf16", cache__dtype="bf16")
    model = llama_model(spec)
    randomise(model)
    path = save(model, tmp_path)
    for number, (got, want) in enumerate(zip(ours(spec, path), theirs(model, spec), strict=True)):
        check_logits(f"sequence {number}", got, want, "bf16")
