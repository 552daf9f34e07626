"""Specs from GGUF metadata: what becomes of each key, and what is refused by name."""

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.build.rope import rope_frequencies, rope_scale
from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.gguf import spec_from_gguf
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.model import Llama3Scaling, ModelSpec, Rope
from mlxr_tests.storyteller import GOLDEN, Q8_0, storyteller_spec

Facts = tuple[dict[str, Any], dict[str, TensorFact]]
Reader = Callable[[Path], Facts]


def imported(facts: Facts, options: ImportOptions | None = None, **changes: Any) -> ModelSpec:
    """Imports metadata with some keys changed: `rope__freq_base=1.0` for llama.rope.freq_base; None removes one."""
    metadata, tensors = dict(facts[0]), facts[1]
    for name, value in changes.items():
        key = f"llama.{name.replace('__', '.')}"
        metadata[key] = value
        if value is None:
            del metadata[key]
    return spec_from_gguf(metadata, tensors, "tiny", "tiny.gguf", options or ImportOptions())


@pytest.fixture
def tiny(gguf_facts: Reader) -> Facts:
    return gguf_facts(GOLDEN / "tiny-Q4_K_M.gguf")


def test_the_bundled_model_gives_its_own_spec(gguf_facts: Reader) -> None:
    spec = spec_from_gguf(*gguf_facts(Q8_0), "storyteller", "s.gguf")
    expected = storyteller_spec()
    assert spec.model == expected.model
    assert spec.name == "storyteller"
    assert spec.weights.default == "q8_0"
    assert (spec.cache.dtype, spec.activation_dtype, spec.compute) == ("auto", "auto", "fast")


EXPECTED = {
    "f32": {"default": "f32"},
    "F16": {"default": "f16"},
    "BF16": {"default": "bf16"},
    "Q8_0": {"default": "q8_0"},
    "Q4_0": {"default": "q4_0"},
    "Q4_1": {"default": "q4_1"},
    "IQ4_XS": {"default": "iq4_xs"},
    "Q6_K": {"default": "q6_k"},
    "Q4_K_M": {"default": "q4_k", "output": "q6_k"},
    "Q5_K_M": {"default": "q5_k", "output": "q6_k"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_formats_are_those_of_the_tensors(gguf_facts: Reader, name: str) -> None:
    facts = gguf_facts(GOLDEN / f"tiny-{name}.gguf")
    result = imported(facts)
    mixed = name in ("Q4_K_M", "Q5_K_M")
    exceptions = {"layers.1.attention.v": "q6_k", "layers.1.mlp.down": "q6_k"} if mixed else {}
    assert result.weights.model_dump(exclude_none=True) == EXPECTED[name] | {"norm": "f32", "tensors": exceptions}
    assert _formats_agree(result, facts[1])


def _formats_agree(spec: ModelSpec, tensors: dict[str, TensorFact]) -> bool:
    """Whether every matrix of the file has the format that the spec gives it."""
    roles = {"attn_q": "attention.q", "attn_v": "attention.v", "ffn_down": "mlp.down", "ffn_gate": "mlp.gate"}
    return all(
        spec.weights.of_tensor(f"layers.{layer}.{role}").gguf == tensors[f"blk.{layer}.{name}.weight"].type
        for layer in range(2)
        for name, role in roles.items()
    )


def test_a_role_of_another_format_in_all_layers_is_one_exception(tiny: Facts) -> None:
    tensors = dict(tiny[1])
    for layer in range(2):
        name = f"blk.{layer}.attn_k.weight"
        tensors[name] = tensors[name]._replace(type="Q8_0")
    spec = imported((tiny[0], tensors))
    assert spec.weights.tensors["layers.*.attention.k"] == "q8_0"
    assert spec.weights.of_tensor("layers.1.attention.k") == "q8_0"


def test_types_without_a_format_are_refused(tiny: Facts) -> None:
    unknown = {n: t._replace(type="Q1_0") if "ffn_up" in n else t for n, t in tiny[1].items()}
    with pytest.raises(
        SpecError, match=r"layers\.0\.mlp\.up is of type 'Q1_0', which is not supported; supported: F32"
    ):
        imported((tiny[0], unknown))


def test_tied_embeddings_follow_from_the_missing_output(tiny: Facts) -> None:
    assert imported(tiny).model.tie_embeddings is False
    tied = {name: fact for name, fact in tiny[1].items() if name != "output.weight"}
    spec = imported((tiny[0], tied))
    assert spec.model.tie_embeddings is True
    assert spec.weights.of("output") == spec.weights.of("embedding") == "q4_k"


def test_biases_follow_from_the_tensors(tiny: Facts) -> None:
    tensors = dict(tiny[1])
    for role, rows in (("q", 256), ("k", 128), ("v", 128)):
        tensors |= {f"blk.{i}.attn_{role}.bias": TensorFact((rows,), "F32") for i in range(2)}
    attention = imported((tiny[0], tensors)).model.attention
    assert (attention.qkv_bias, attention.output_bias) == (True, False)


def test_defaults_are_llama_cpps(tiny: Facts) -> None:
    model = imported(tiny, rope__freq_base=None, rope__dimension_count=None, attention__head_count_kv=4).model
    assert (model.rope.theta, model.rotary_dim, model.attention.num_kv_heads) == (10000.0, 64, 4)
    assert imported(tiny, attention__head_count_kv=None).model.attention.num_kv_heads == 4


def test_numbers_held_as_f32_are_read_as_people_wrote_them(tiny: Facts) -> None:
    (stored,) = struct.unpack("f", struct.pack("f", 3e-6))
    assert imported(tiny, attention__layer_norm_rms_epsilon=stored).model.norm.eps == 3e-6


def test_lists_for_each_layer_may_say_one_thing(tiny: Facts) -> None:
    assert imported(tiny, attention__head_count_kv=[2, 2]).model.attention.num_kv_heads == 2
    with pytest.raises(SpecError, match=r"feed_forward_length is 512 in layer 0 and 1024 in layer 1; layers that"):
        imported(tiny, feed_forward_length=[512, 1024])


def test_patterns_of_windows_are_numbers_or_lists(tiny: Facts) -> None:
    """As llama.cpp's converter writes them: EXAONE 4 and OLMo 3 have a flag for each layer, Gemma 3 has none."""

    def windows(architecture: str, **keys: Any) -> list[int | None]:
        metadata = {key.replace("llama.", f"{architecture}."): value for key, value in tiny[0].items()}
        metadata |= {"general.architecture": architecture, f"{architecture}.attention.sliding_window": 64}
        metadata |= {f"{architecture}.{name.replace('__', '.')}": value for name, value in keys.items()}
        model = spec_from_gguf(metadata, tiny[1], "tiny", "tiny.gguf").model
        return [model.layer(layer).attention.sliding_window for layer in range(2)]

    for pattern, expected in (
        ([True, False], [64, None]),
        ([False, True], [None, 64]),
        (2, [64, None]),
        (0, [64, 64]),
        (1, [None, None]),
    ):
        for architecture in ("exaone4", "olmo2", "gemma2", "gemma3"):
            assert windows(architecture, attention__sliding_window_pattern=pattern) == expected
    for wrong in ([True], [1.5, 0], "LG", -1):
        with pytest.raises(
            SpecError, match=r"exaone4\.attention\.sliding_window_pattern is .*; expected true or false for"
        ):
            windows("exaone4", attention__sliding_window_pattern=wrong)


def test_a_scale_of_scores_is_the_models(tiny: Facts) -> None:
    assert imported(tiny, attention__scale=0.5).model.attention.scale == 0.5
    for usual in (0.0, 0.125):
        assert imported(tiny, attention__scale=usual).model.attention.scale is None


def test_linear_scaling_and_partial_rotation_and_windows(tiny: Facts) -> None:
    model = imported(tiny, rope__scaling__type="linear", rope__scaling__factor=2.0, rope__dimension_count=32).model
    assert model.rope.model_dump()["scaling"] == {"kind": "linear", "factor": 2.0}
    assert model.rotary_dim == 32
    assert imported(tiny, attention__sliding_window=128).model.attention.sliding_window == 128
    assert imported(tiny, attention__sliding_window=0).model.attention.sliding_window is None


def test_llama_3_scaling_is_recognised_by_its_divisors(tiny: Facts) -> None:
    tensors = tiny[1] | {"rope_freqs.weight": TensorFact((32,), "F32")}
    metadata = tiny[0] | {"llama.rope.freq_base": 500000.0}
    scaling = Llama3Scaling(kind="llama3", factor=8.0)
    plain = rope_frequencies(Rope(theta=5e5), 64)
    divisors = [p / s for p, s in zip(plain, rope_frequencies(Rope(theta=5e5, scaling=scaling), 64), strict=True)]
    rounded = [struct.unpack("f", struct.pack("f", d))[0] for d in divisors]
    spec = spec_from_gguf(metadata, tensors, "l3", "l3.gguf", factors={"rope_freqs.weight": rounded})
    assert spec.model.rope.scaling == scaling
    for wrong in ([1.0] * 31, [0.0] * 32, [math.nan] * 32):
        with pytest.raises(SpecError, match=r"rope_freqs\.weight has 3\d numbers; expected 32 finite ones above 0"):
            spec_from_gguf(metadata, tensors, "l3", "l3.gguf", factors={"rope_freqs.weight": wrong})


def test_sequences_that_are_known_to_be_short_get_the_factors_for_short_contexts(tiny: Facts) -> None:
    """As transformers chooses them; a model for prompts of any length is compiled with those for long ones."""
    names = {"rope_factors_long.weight": [4.0] * 32, "rope_factors_short.weight": [1.5] * 32}
    tensors = tiny[1] | {name: TensorFact((32,), "F32") for name in names}
    metadata = tiny[0] | {"llama.context_length": 131072, "llama.rope.scaling.original_context_length": 4096}

    def context(factors: dict[str, list[float]], **options: int) -> int:
        return spec_from_gguf(metadata, tensors, "phi", "x", ImportOptions(**options), factors).model.context

    assert context(names) == context(names, needed_context=4097) == 131072
    assert context(names, needed_context=512) == 4096 and context(names, context=600, needed_context=512) == 600
    assert context(dict.fromkeys(names, [1.5] * 32), needed_context=512) == 131072, "the factors are the same"


def test_other_divisors_than_llama_3s_are_taken_as_they_are(tiny: Facts) -> None:
    tensors = tiny[1] | {"rope_freqs.weight": TensorFact((32,), "F32")}
    scaling = Llama3Scaling(kind="llama3", factor=4.0, high_freq_factor=2.0, original_context=4096)
    plain, scaled = rope_frequencies(Rope(), 64), rope_frequencies(Rope(scaling=scaling), 64)
    divisors = [p / s for p, s in zip(plain, scaled, strict=True)]
    rope = spec_from_gguf(tiny[0], tensors, "l3", "l3.gguf", factors={"rope_freqs.weight": divisors}).model.rope
    assert rope is not None and rope.scaling.kind == "longrope"
    for context in (1, 100_000):
        assert rope_frequencies(rope, 64, context) == pytest.approx(scaled)
        assert rope_scale(rope, context) == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope__scaling__type": "ntk"}, r'rope\.scaling\.type is "ntk"; expected one of none, linear, yarn'),
        ({"expert_count": 8}, r"says nothing of llama\.expert_used_count"),
        ({"expert_shared_count": 1}, r"'llama\.expert_shared_count' = 1: not supported, and it may change what the"),
        ({"attention__causal": False}, r"'llama\.attention\.causal' = false"),
        ({"attention__value_length": 36}, "v_dim 36 is not a multiple of 8"),
        ({"vocab_size": 641}, r"vocab_size is 641; expected the rows of the embedding table, 640"),
        ({"new_trick": 1}, r"'llama\.new_trick' = 1: not supported"),
        ({"attention__head_count": None}, r"says nothing of llama\.attention\.head_count"),
        ({"block_count": "two"}, r'block_count is "two"; expected a whole number'),
        ({"rope__freq_base": math.inf}, r"rope\.freq_base is inf; expected a finite number"),
        ({"block_count": 2, "nextn_predict_layers": 2}, r"block_count is 0; expected from 1 to 1024 layers"),
        (
            {"attention__head_count_kv": [2, 1]},
            r"head_count_kv is 2 in layer 0 and 1 in layer 1; layers that differ in",
        ),
        ({"block_count": 10**9}, r"block_count is 1000000000; expected from 1 to 1024 layers"),
        ({"attention__head_count": 0}, "head_count 0: of these nothing can be computed"),
        ({"embedding_length": -8}, "key_length -2: of these nothing can be computed"),
    ],
)
def test_what_may_change_the_result_is_refused_by_name(tiny: Facts, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        imported(tiny, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"expert_count": 0},
        {"attention__causal": True},
        {"rope__scaling__finetuned": True},
        {"pooling_type": 0},
        {"expert_count": [0, 0]},
    ],
)
def test_what_changes_nothing_is_let_pass(tiny: Facts, changes: dict[str, Any]) -> None:
    assert imported(tiny, **changes) == imported(tiny)


def test_other_architectures_are_refused_with_those_that_are_supported(tiny: Facts) -> None:
    for name, message in (
        ("mamba", r'is "mamba"; that is not supported; supported: .*, chatglm, cohere2, '),
        (None, "is missing"),
    ):
        with pytest.raises(SpecError, match=message):
            spec_from_gguf(tiny[0] | {"general.architecture": name}, tiny[1], "x", "x.gguf")


def test_the_context_is_the_models_own_if_memory_allows_and_no_other_is_asked_for(tiny: Facts) -> None:
    def context(**options: Any) -> tuple[int, int | None]:
        spec = imported(tiny, ImportOptions(**options), context_length=131072)
        return spec.model.context, spec.cache.least_context

    assert context() == context(needed_context=5000) == (131072, 2048)
    assert context(context=100) == context(context=100, needed_context=50) == (100, None)
    assert imported(tiny).model.context == 512 and imported(tiny).cache.least_context is None
    with pytest.raises(SpecError, match="own context is 512 tokens; 513 are asked for"):
        imported(tiny, ImportOptions(context=513))


def test_options_reach_the_spec(tiny: Facts) -> None:
    spec = imported(tiny, ImportOptions(max_sequences=3, compute="exact", cache_dtype="q8"))
    assert (spec.cache.max_sequences, spec.compute, spec.cache.dtype) == (3, "exact", "q8")


@pytest.mark.parametrize(
    ("file_name", "name"),
    [("Qwen3 0.6B (new)", "Qwen3-0.6B-new"), ("1e5", "model-1e5"), ("\u00e4", "model"), ("a" * 99, "a" * 56)],
)
def test_the_name_is_made_valid(tiny: Facts, file_name: str, name: str) -> None:
    assert spec_from_gguf(*tiny, file_name, "x.gguf").name == name


def test_older_files_of_minicpm_have_the_factors_of_its_2b(tiny: Facts) -> None:
    metadata = {key.replace("llama.", "minicpm."): value for key, value in tiny[0].items()}
    metadata["general.architecture"] = "minicpm"
    older = spec_from_gguf(metadata, tiny[1], "older", "older.gguf").model
    factors = (older.embedding_scale, older.residual_scale, older.logit_scale)
    assert factors == pytest.approx((12.0, 1.4 / math.sqrt(older.num_layers), 256 / older.hidden_size))
    said = {"minicpm.embedding_scale": 3.0, "minicpm.residual_scale": 0.5, "minicpm.logit_scale": 4.0}
    newer = spec_from_gguf(metadata | said, tiny[1], "newer", "newer.gguf").model
    assert (newer.embedding_scale, newer.residual_scale, newer.logit_scale) == (3.0, 0.5, 0.25)
