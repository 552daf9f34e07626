"""Specs from config.json: both generations of its keys, and what is refused by name."""

from contextlib import nullcontext
from typing import Any

import pytest

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.config import spec_from_config
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.model import ModelSpec
from mlxr_tests.storyteller import storyteller_spec

Facts = tuple[dict[str, Any], dict[str, TensorFact]]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def imported(facts: Facts, **changes: Any) -> ModelSpec:
    return spec_from_config(facts[0] | changes, facts[1], "storyteller", "config.json")


def untied(facts: Facts) -> Facts:
    return facts[0], facts[1] | {"lm_head.weight": TensorFact((4096, 512), "BF16")}


def test_the_bundled_model_gives_its_own_spec(storyteller_config: Facts) -> None:
    spec = imported(storyteller_config)
    assert spec.model == storyteller_spec().model
    assert (spec.weights.default, spec.activation_dtype, spec.cache.dtype) == ("bf16", "auto", "auto")


def test_defaults_are_those_of_transformers(storyteller_config: Facts) -> None:
    config, tensors = storyteller_config
    few = ("head_dim", "rms_norm_eps", "rope_theta", "hidden_act", "num_key_value_heads", "tie_word_embeddings")
    spec = spec_from_config({k: v for k, v in config.items() if k not in few}, tensors, "s", "config.json")
    model = spec.model
    assert (model.attention.head_dim, model.norm.eps, model.rope.theta) == (64, 1e-6, 10000.0)
    assert (model.mlp.activation, model.attention.num_kv_heads, model.tie_embeddings) == ("silu", 8, True)


def test_both_spellings_of_rope(storyteller_config: Facts) -> None:
    old = imported(storyteller_config, rope_theta=5e5, rope_scaling=LLAMA3, max_position_embeddings=131072)
    config = {k: v for k, v in storyteller_config[0].items() if k != "rope_theta"}
    new = imported((config, storyteller_config[1]), rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    assert old.model.rope == new.model.rope
    assert old.model.rope.scaling.model_dump() == {
        "kind": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_context": 8192,
    }
    linear = imported(storyteller_config, rope_scaling={"type": "linear", "factor": 4})
    assert linear.model.rope.scaling.model_dump() == {"kind": "linear", "factor": 4.0}
    assert imported(storyteller_config, rope_scaling=None) == imported(storyteller_config)
    assert imported(storyteller_config, rope_scaling={"rope_type": "default"}) == imported(storyteller_config)


def test_a_window_is_mistrals(storyteller_config: Facts) -> None:
    spec = imported(storyteller_config, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=256)
    assert spec.model.attention.sliding_window == 256
    assert (
        imported(storyteller_config, model_type="mistral", sliding_window=None).model.attention.sliding_window is None
    )
    # transformers has a window of 4096 where the key is left out, which is another thing than null
    assert imported(storyteller_config, model_type="mistral").model.attention.sliding_window == 4096


def test_activations_by_their_names(storyteller_config: Facts) -> None:
    for name, activation in (("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh"), ("silu", "silu")):
        assert imported(storyteller_config, hidden_act=name).model.mlp.activation == activation


def test_an_output_beside_tied_embeddings_is_the_same_matrix(storyteller_config: Facts) -> None:
    facts = untied(storyteller_config)
    config, tensors = facts[0] | {"tie_word_embeddings": True}, facts[1]
    for same in (True, False):
        with nullcontext() if same else pytest.raises(SpecError, match=r"lm_head\.weight is among the tensors and is"):
            spec = spec_from_config(config, tensors, "s", "config.json", are_same=lambda *names, it=same: it)
            assert spec.model.tie_embeddings is True
    assert imported(facts, tie_word_embeddings=False).model.tie_embeddings is False
    with pytest.raises(SpecError, match=r"tie_word_embeddings is false; expected true: there is no output projection"):
        imported(storyteller_config, tie_word_embeddings=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "mrope"}},
            r'rope_scaling: rope_type is "mrope"; expected one of default, linear',
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: says nothing of factor"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": 1, "long_factor": [1.0]}},
            "short_factor is 1; expected a",
        ),
        ({"rope_scaling": 3}, "rope_scaling is 3; expected a section"),
        ({"attention_bias": True}, "attention_bias is true; expected false, as the rest of the file has it"),
        ({"sliding_window": 512}, "'sliding_window' = 512: not supported"),
        ({"model_type": "lama"}, r'model_type is "lama"; that is not supported.*did the file mean "llama"'),
        ({"model_type": None}, "model_type is missing"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "expected a language model"),
        ({"quantization": {"bits": 4}}, "quantization: quantised by null, which is not supported; supported: mlx-lm's"),
        ({"quantization_config": {"quant_method": "awq"}}, 'quantised by "awq"'),
        ({"hidden_act": "mish"}, 'hidden_act is "mish"; expected one of silu'),
        ({"is_causal": False}, "'is_causal' = false: not supported"),
        ({"per_layer_config": {"1": {"num_key_value_heads": 4}}}, "'per_layer_config' = "),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            '"sliding_attention" in layer 1; layers that',
        ),
        ({"partial_rotary_factor": 0.5}, r"'partial_rotary_factor' = 0\.5: not supported.*name it with --accept-key"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "0.5; expected 1: the family's own code does not read"),
        ({"num_hidden_layers": True}, "num_hidden_layers is true; expected a whole number"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"head_dim": 63}, r"config\.json: no spec can be made of what it says"),
    ],
)
def test_what_may_change_the_result_is_refused_by_name(
    storyteller_config: Facts, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        imported(storyteller_config, **changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [("architectures", ["LlamaForCausalLMEagle3"]), ("draft_vocab_size", 32000), ("speculators_model_type", "eagle3")],
)
def test_heads_for_other_models_are_refused(storyteller_config: Facts, key: str, value: object) -> None:
    with pytest.raises(SpecError, match="not a model but a head, such as EAGLE's"):
        imported(storyteller_config, **{key: value})


def test_types_that_cannot_be_held_are_refused(storyteller_config: Facts) -> None:
    tensors = {n: t._replace(type="F8_E8M0") for n, t in storyteller_config[1].items()}
    with pytest.raises(SpecError, match="is of type 'F8_E8M0', which is not supported"):
        imported((storyteller_config[0], tensors))


def test_without_an_embedding_it_is_no_language_model(storyteller_config: Facts) -> None:
    with pytest.raises(SpecError, match="holds no embedding table"):
        spec_from_config(storyteller_config[0] | {"tie_word_embeddings": True}, {}, "s", "config.json", ImportOptions())


def test_keys_that_say_nothing_of_the_model_are_no_matter(storyteller_config: Facts) -> None:
    """transformers reads a few keys of llama, and ignores any other, also in the section of RoPE."""
    keys = {"auto_map": {}, "license": "mit", "logit_scale": 0.0625, "new_trick": [1], "mlp_only_layers": [1]}
    assert imported(storyteller_config, **keys) == imported(storyteller_config)
    assert imported(storyteller_config, sliding_window=1024) == imported(storyteller_config)  # the whole context
    scaled = imported(storyteller_config, rope_scaling=LLAMA3)
    assert imported(storyteller_config, rope_scaling=LLAMA3 | {"attention_factor": 2.0, "mrope_section": [1]}) == scaled


def test_a_key_that_the_user_accepts_is_no_matter(storyteller_config: Facts) -> None:
    config, tensors = storyteller_config
    for key, changed in (
        ("is_causal", config | {"is_causal": False}),
        # Keys that an earlier version refused, and this one ignores.
        ("new_trick", config | {"new_trick": 1}),
        ("rope_parameters.trick", config | {"rope_parameters": {"trick": 1}}),
    ):
        spec = spec_from_config(changed, tensors, "storyteller", "c", ImportOptions(accepted_keys=(key,)))
        assert spec == imported(storyteller_config)
    for key in ("rope_theta", "rope_tehta"):
        with pytest.raises(
            SpecError, match=f"'{key}' is to be accepted, but the file has no such key, or it is one that"
        ):
            spec_from_config(config, tensors, "s", "c", ImportOptions(accepted_keys=(key,)))
