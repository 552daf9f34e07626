"""Each key of each family's config.json, changed alone: our importer makes of it what the family's reference does.

What the references make of it was recorded by `record_config_effects.py` (transformers, and mlx-lm for InternLM 2): a
key without effect is ignored, one with an effect is applied or refused, and where it is applied our logits are the
reference's.
"""

import json
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.config import spec_from_config
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.compare_spec import differences
from mlxr.loading.imported_model import import_model
from mlxr_tests import alibi_models
from mlxr_tests import config_effects as cases
from mlxr_tests.config_effects import Change, Config, Row
from mlxr_tests.family_oracle import EXACT, logits_of, prompts
from mlxr_tests.few import few

RECORDED = cases.load_recorded()
TOLERANCE = 1e-4
REFUSED = {
    "original_max_position_embeddings": "contradicts the same key in a section of rope_parameters",
    "partial_rotary_factor": "transformers 4 applies it, and transformers 5 where RoPE is scaled",
    "rope_parameters": "says otherwise than the base's rope_scaling",
    "rope_parameters.original_max_position_embeddings": "contradicts the same key outside",
    "rope_parameters.partial_rotary_factor": "as partial_rotary_factor",
    "rope_scaling": "`type` alone, where layers differ: transformers 4 reads it",
    "sliding_window": "changes transformers' cache, which these logits do not see",
    "tie_word_embeddings": "beside an output projection of its own; see below",
    "use_sliding_window": "SmolLM 3 alone, which it gives windows if the next key is set",
}
"""Keys without an effect on these logits that are refused all the same."""
IGNORED = {
    "initializer_range": "of training",
    **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop", "residual_dropout"), "of training"),
    "attention_chunk_size": "of layers of a type that the model does not have",
    **dict.fromkeys(("index_head_dim", "index_n_heads"), "of indexers, whose tensors are left alone"),
    "pad_token_id": "of batches that are filled up; transformers wants it within the vocabulary",
}
"""Keys that some references refuse, and that we ignore all the same."""
NOT_ROTATED = ("bloom", "gpt2", "gpt_bigcode", "kimi_linear", "mamba2", "mpt", "nemotron_h")
"""Families that do not rotate, and so do not read how."""
OF_INDEXERS = {"minimax_m3_vl_text": ("layer_types",)}
"""Keys of families that say which layers have an indexer: their tensors are left alone, but fit no others there."""
OF_OTHERS = {
    "dbrx": ("attn_config.rope_theta",),
    "falcon_h1": ("layer_types", "mamba_d_head"),
    "granitemoehybrid": ("mamba_d_head",),
    "kimi_linear": ("mla_use_nope", "moe_layer_freq", "moe_router_activation_func"),
    "mamba2": ("layer_types", "expand"),
    "mpt": alibi_models.OF_MPT,
    "nemotron_h": ("layer_types",),
    "step3p5": ("mlp_layer_types", "query_pre_attn_scalar"),
}
"""Keys that the family's reference does not read and others do, or that it refuses and others do not read."""
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
"""Begins beyond the model's own context, which nothing exceeds here; not every reference knows it."""


def imported(config: Config, family: str) -> ModelSpec:
    """The spec, of one context, on which no logits depend."""
    tensors = {name: TensorFact(tuple(shape), "F32") for name, shape in RECORDED[family].shapes.items()}
    spec = spec_from_config(config, tensors, family, "config.json")
    return spec.model_copy(update={"model": spec.model.model_copy(update={"context": 64})})


@cache
def base_spec(family: str, spelling: str) -> ModelSpec:
    return imported(cases.base_config(family, spelling), family)


def outcome(family: str, change: Change) -> str:
    """What we make of a change: `refused`, `ignored` or `applied`."""
    try:
        spec = imported(cases.changed(cases.base_config(family, change.base), change), family)
    except SpecError:
        return "refused"
    return "applied" if any(differences(spec.model, base_spec(family, change.base).model)) else "ignored"


def ignored_together(family: str, changes: list[Change]) -> set[str]:
    """Those of the changes that can be made at once without any difference, which is much faster than one by one."""
    groups: dict[tuple[str, int], list[Change]] = {}
    for change in changes:
        if change.key not in REFUSED:
            values = sum(
                change.key == held.key for group in groups.values() for held in group if held.base == change.base
            )
            groups.setdefault((change.base, values), []).append(change)
    ignored = set()
    for (base, _), group in groups.items():
        config = cases.base_config(family, base)
        for change in group:
            config = cases.changed(config, change)
        with suppress(SpecError):
            if not any(differences(imported(config, family).model, base_spec(family, base).model)):
                ignored |= {str(change) for change in group}
    return ignored


@pytest.mark.parametrize("family", RECORDED)
def test_keys_do_what_they_do_in_the_reference(family: str) -> None:
    wrong = []
    ignored = [*IGNORED, *OF_INDEXERS.get(family, ()), *OF_OTHERS.get(family, ())]
    ignored += ["rope_scaling"] if family in NOT_ROTATED else []
    rows = [row for row in RECORDED[family].rows if row.change.key not in ignored and row.change.value != DYNAMIC]
    without = ignored_together(family, [change for change, effect, _ in rows if effect == "none"])
    for change, effect, _ in rows:
        if str(change) in without:
            continue
        good = {"none": {"ignored"}, "changes": {"applied", "refused"}, "error": {"applied", "refused"}}[effect]
        if effect == "none" and (change.key in REFUSED or family in cases.OF_MLX_LM):  # whose own code nobody ran
            good = {"ignored", "refused"}
        if (got := outcome(family, change)) not in good:
            wrong.append(f"{change} is {got}; in {RECORDED[family].reference}: {effect}")
    assert not wrong, "\n".join(wrong)


APPLIED = [
    (family, row)
    for family, held in RECORDED.items()
    for row in [*(Row(Change(base, "", None), "", logits) for base, logits in held.bases.items()), *held.rows]
    if row.effect in ("", "changes") and not (family in cases.OF_MLX_LM and "attention_factor" in str(row.change.value))
]  # mlx-lm does not know attention_factor, which transformers applies in every family
SHORT = {
    "gemma": {"hidden_act": "silu"},
    "gemma2": {"hidden_activation": "relu"},
    "gemma3_text": {"hidden_activation": "gelu"},
    "ministral3": {"sliding_window": 3},
}


@pytest.mark.parametrize(
    ("family", "row"),
    few(APPLIED, [(f, row) for f, row in APPLIED if SHORT.get(f, {}).get(row.change.key) == (row.change.value or 0)]),
    ids=str,
)
def test_logits_are_those_of_the_reference(family: str, row: Row, tmp_path: Path) -> None:
    if outcome(family, row.change) == "refused":
        return
    numbers = cases.weights(family, RECORDED[family].shapes)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {name: mx.array(held) for name, held in numbers.items()})
    config = cases.changed(cases.base_config(family, row.change.base), row.change)
    if imported(config, family).model.is_encoder:  # it has rows, and no logits
        return
    (tmp_path / "config.json").write_text(json.dumps(config))
    got = logits_of(tmp_path, prompts(cases.VOCAB), "reference")[0][-1][: cases.NUM_LOGITS]
    assert np.linalg.norm(got - row.logits) < TOLERANCE * np.linalg.norm(row.logits)


NAMES = {
    "model.embed_tokens": "embedding.word_embeddings",
    "lm_head": "output_layer",
    "model.norm": "encoder.final_layernorm",
    "self_attn.o_proj": "self_attention.dense",
    "mlp.gate_up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}
"""Tensors of transformers' folders of GLM, and of those with code of their own."""


def test_chatglm_is_glm_in_another_layout(tmp_path: Path) -> None:
    """Published folders of GLM 4 come in both, and transformers' own converter makes one of the other in this way."""
    glm, held = cases.base_config("glm", "rope_theta"), cases.weights("glm", RECORDED["glm"].shapes)
    numbers = {}
    for name, value in held.items():
        new = name.replace("model.layers", "encoder.layers")
        for old, other in NAMES.items():
            new = new.replace(old, other)
        if not any(f"self_attn.{part}_proj" in name for part in "qkv"):
            numbers[f"transformer.{new}"] = value
    for layer in range(cases.NUM_LAYERS):
        for end in ("weight", "bias"):
            rows = [held[f"model.layers.{layer}.self_attn.{part}_proj.{end}"] for part in "qkv"]
            numbers[f"transformer.encoder.layers.{layer}.self_attention.query_key_value.{end}"] = np.concatenate(rows)
    config: Config = {
        "model_type": "chatglm",
        "architectures": ["ChatGLMModel"],
        "num_layers": glm["num_hidden_layers"],
        "hidden_size": glm["hidden_size"],
        "num_attention_heads": glm["num_attention_heads"],
        "multi_query_attention": True,
        "multi_query_group_num": glm["num_key_value_heads"],
        "kv_channels": glm["head_dim"],
        "ffn_hidden_size": glm["intermediate_size"],
        "padded_vocab_size": glm["vocab_size"],
        "layernorm_epsilon": glm["rms_norm_eps"],
        "rope_ratio": glm["rope_theta"] / 10000,
        "seq_length": glm["max_position_embeddings"],
        "add_qkv_bias": True,
        "tie_word_embeddings": False,
    }
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {name: mx.array(value) for name, value in numbers.items()})
    (tmp_path / "config.json").write_text(json.dumps(config))
    want = RECORDED["glm"].bases["rope_theta"]
    got = logits_of(tmp_path, prompts(cases.VOCAB), "reference")[0][-1][: cases.NUM_LOGITS]
    assert np.linalg.norm(got - want) < TOLERANCE * np.linalg.norm(want)


def test_the_table_has_every_family() -> None:
    assert sorted(RECORDED) == sorted(cases.FAMILIES)
    assert all({row.effect for row in held.rows} == {"none", "changes", "error"} for held in RECORDED.values())


@pytest.mark.parametrize("same", [True, False])
def test_an_output_projection_beside_tied_embeddings_must_be_the_same_matrix(same: bool, tmp_path: Path) -> None:
    numbers = cases.weights("llama", RECORDED["llama"].shapes)
    numbers["lm_head.weight"] = numbers["model.embed_tokens.weight"] + (0 if same else 1)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {name: mx.array(held) for name, held in numbers.items()})
    config = cases.base_config("llama", "rope_theta") | {"tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with nullcontext() if same else pytest.raises(SpecError, match="transformers would compute with lm_head"):
        assert import_model(tmp_path, EXACT)[0].model.tie_embeddings
