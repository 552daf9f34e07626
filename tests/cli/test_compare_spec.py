"""A spec that contradicts what the files of its weights say is refused, whatever the property."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxr.cli import main
from mlxr.compiler.errors import ContextError, SpecError, WeightsError
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.spec.model import Model
from mlxr.loading.compare_spec import check_spec, differences
from mlxr.loading.imported_model import import_model
from mlxr_tests.family_gguf import write_gguf
from mlxr_tests.storyteller import BF16, Q8_0, storyteller_spec

SPEC = storyteller_spec()
OTHERS: dict[str, Any] = {
    "vocab_size": 4104,
    "hidden_size": 520,
    "num_layers": 7,
    "learned_positions": 2048,
    "token_types": 2,
    "output_bias": True,
    "parallel_blocks": True,
    "tie_embeddings": False,
    "embedding_scale": 2.0,
    "residual_scale": 2.0,
    "logit_scale": 2.0,
    "logit_softcap": 30.0,
    "embedding_norm": True,
    "factors": {"mlp_down": 2.0},
    "norm.kind": "layer",
    "norm.eps": 1e-6,
    "norm.placement": "sandwich",
    "norm.weight": False,
    "norm.first": False,
    "rope.theta": 5e5,
    "rope.fraction": 0.5,
    "rope.turned": 0.5,
    "rope.layout": "interleaved",
    "rope.scaling": {"kind": "linear", "factor": 2.0},
    "attention.num_heads": 16,
    "attention.num_kv_heads": 1,
    "attention.head_dim": 32,
    "attention.scale": 0.5,
    "attention.softcap": 50.0,
    "attention.sliding_window": 16,
    "attention.qk_norm": {"scope": "head"},
    "attention.sinks": True,
    "attention.qkv_bias": True,
    "attention.qkv_limit": 8.0,
    "attention.output_gate": {"scope": "head"},
    "attention.v_dim": 72,
    "attention.value_scale": 0.5,
    "attention.alibi": 8.0,
    "attention.causal": False,
    "attention.output_bias": True,
    "attention.temperature": {"beta": 0.1, "original_context": 16},
    "mlp.intermediate_size": 1288,
    "mlp.activation": "gelu",
    "mlp.gated": False,
    "mlp.bias": True,
    "mlp.experts": {"count": 4, "per_token": 2, "router": "topk_softmax"},
}
"""Another value of every property of a model."""
NOT_COMPARED = {"context", "tensor_names", "layer_types", "layer_pattern", "mtp", "eagle"}
OF_LAYER_TYPES = {"attention.kv_from"}
"""Properties that all layers together cannot have."""
NEEDS: dict[str, dict[str, Any]] = {
    "norm.bias": {"norm.kind": "layer", "norm.bias": True},
    "mlp.limit": {"mlp.activation": "swiglu_oai", "mlp.limit": 7.0},
    "mlp.shared_limit": {
        "mlp.experts": {"count": 4, "per_token": 2, "router": "sigmoid", "shared": {"intermediate_size": 64}},
        "mlp.shared_limit": 7.0,
    },
    "layer_scale": {"norm.placement": "sandwich", "layer_scale": True},
    "layer_embeddings": {"norm.placement": "sandwich", "layer_embeddings": {"width": 32}},
    "parallel_norms": {"parallel_blocks": True, "parallel_norms": True},
    "blocks": {"blocks": ["attention"]},
    "recurrent": {"blocks": ["recurrent", "mlp"], "recurrent": {"kind": "conv", "channels": 64, "taps": 3}},
    "attention.chunked": {"attention.sliding_window": 16, "attention.chunked": True},
    "attention.values_from_keys": {"attention.qk_norm": {"scope": "head"}, "attention.values_from_keys": True},
    "attention.latent": {
        "attention.num_kv_heads": 1,
        "attention.head_dim": 64,
        "attention.latent": {"kv_rank": 64, "nope_dim": 32, "rope_dim": 32, "v_dim": 64},
    },
}
"""Properties that need others."""


def changed(changes: dict[str, Any]) -> Model:
    data = SPEC.model.model_dump(mode="json")
    for path, value in changes.items():
        section, _, key = path.rpartition(".")
        (data[section] if section else data)[key] = value
    return Model.model_validate(data)


@pytest.mark.parametrize("path", [*OTHERS, *NEEDS])
def test_every_property_is_compared(path: str) -> None:
    other = changed({path: OTHERS[path]} if path in OTHERS else NEEDS[path])
    told = list(differences(other, SPEC.model))
    assert any(one.startswith(f"model.{path}") and ", the spec says " in one for one in told), told
    assert not list(differences(other, other))


def test_no_property_is_forgotten() -> None:
    def paths(model: Any, at: str = "") -> set[str]:
        found = set()
        for name in type(model).model_fields:
            inner = getattr(model, name)
            section = name in ("norm", "rope", "attention", "mlp")
            found |= paths(inner, f"{name}.") if section else {at + name}
        return found

    assert paths(SPEC.model) == {*OTHERS, *NEEDS, *NOT_COMPARED, *OF_LAYER_TYPES}


@pytest.mark.parametrize("weights", [Q8_0, BF16, BF16.parent], ids=["gguf", "safetensors", "folder"])
def test_the_bundled_weights_are_those_of_the_spec(weights: Path) -> None:
    check_spec(SPEC, weights)
    wrong = storyteller_spec(model={"mlp": {"intermediate_size": 1280, "activation": "relu"}})
    with pytest.raises(WeightsError, match=r'model\.mlp\.activation is "silu", the spec says "relu"\. Correct the'):
        check_spec(wrong, weights)
    with pytest.raises(ContextError, match=r"own context is 1024 tokens; 2048 are asked for"):
        check_spec(storyteller_spec(model={"context": 2048}), weights)
    check_spec(storyteller_spec(model={"context": 2048}), weights, force_context=True)


def test_of_a_window_gguf_files_may_be_silent() -> None:
    attention = SPEC.model.attention.model_dump() | {"sliding_window": 16}
    windowed = storyteller_spec(model={"attention": attention})
    check_spec(windowed, Q8_0)
    with pytest.raises(WeightsError, match=r"model\.attention\.sliding_window is null, the spec says 16"):
        check_spec(windowed, BF16)


def test_weights_of_gguf_files_are_multiplied_by_their_factors() -> None:
    scaled = storyteller_spec(model={"factors": {"ssm_o": 0.5}})
    check_spec(scaled, Q8_0)
    with pytest.raises(WeightsError, match=r"model\.factors\.ssm_o is not there, the spec says 0\.5"):
        check_spec(scaled, BF16)


@pytest.mark.parametrize("case", ["gemma2", "gpt_oss"])
def test_a_window_in_layers_that_have_none_is_refused(case: str, tmp_path: Path) -> None:
    """These files say which layers have one."""
    spec, weights = import_model(write_gguf(case, tmp_path), ImportOptions(context=64))
    attention = spec.model.layer(0).attention
    assert attention.sliding_window is not None and spec.model.layer(1).attention.sliding_window is None
    model = spec.model.model_copy(update={"attention": attention, "layer_types": {}, "layer_pattern": []})
    check_spec(spec, weights)
    with pytest.raises(WeightsError, match="sliding_window is null in layer 1, the spec says 6"):
        check_spec(spec.model_copy(update={"model": model}), weights)


def test_alike_in_effect_is_alike() -> None:
    same = changed({"attention.scale": 64**-0.5, "attention.sliding_window": SPEC.model.context})
    assert not list(differences(same, SPEC.model))


def test_a_layer_that_differs_is_named() -> None:
    pattern = {"layer_types": {"a": {}, "b": {"attention": {"sliding_window": 16}}}, "layer_pattern": ["a", "b"]}
    assert list(differences(changed(pattern), SPEC.model)) == [
        "model.attention.sliding_window is null in layer 1, the spec says 16"
    ]


def test_a_model_that_cannot_be_imported_may_have_a_spec(tmp_path: Path) -> None:
    (tmp_path / BF16.name).symlink_to(BF16)
    config = json.loads(BF16.with_name("config.json").read_text()) | {"partial_rotary_factor": 0.5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    wrong = storyteller_spec(model={"mlp": {"intermediate_size": 1280, "activation": "relu"}})
    check_spec(wrong, tmp_path)
    with pytest.raises(WeightsError, match="the spec says"):
        check_spec(wrong, tmp_path, accepted_keys=("partial_rotary_factor",))
    with pytest.raises(SpecError, match="'newer' is to be accepted, but the file has no such key"):
        check_spec(wrong, tmp_path, accepted_keys=("newer",))


def test_a_context_beyond_the_models_own_is_refused_unless_forced(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "storyteller", "--host", "reference", "--prompt", "Once", "--max-tokens", "1", "--context", "1040"]
    assert main(run) == 1
    told = "the model's own context is 1024 tokens; 1040 are asked for. Beyond it a model writes nonsense; --force-cont"
    assert told in capsys.readouterr().err
    assert main([*run, "--force-context"]) == 0
