"""Folders of models that also take images, as text models: published configs, and tiny ones by their reference code.

`data/multimodal_configs.json` has facts: of each kind of folder the keys of the whole that all its models share, those
of the text model (null: they are beside the whole's), and each model's own. `data/multimodal_logits.json` has what
transformers gave (`record_multimodal.py`).
"""

import json
import logging
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model
from transformers import CONFIG_MAPPING

import mlxr
from mlxr.compiler.errors import SpecError, WeightsError
from mlxr.compiler.importers.config import spec_from_config
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.text import size
from mlxr.loading.compare_spec import check_tensors_first
from mlxr.loading.imported_model import import_model
from mlxr.loading.parts_note import note_of_parts
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests import multimodal_models as cases
from mlxr_tests.family_models import build_model, save_folder
from mlxr_tests.family_oracle import EXACT, logits_of, mlx_lm_logits, prompts, relative_error
from mlxr_tests.few import few
from mlxr_tests.multimodal_models import Config

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "multimodal_configs.json").read_text()
)
MODELS = [(kind, name) for kind, models in PUBLISHED.items() for name in models if name not in ("shared", "text")]
RECORDED = cases.load_recorded()
TOLERANCE = 5e-6


def published(kind: str, name: str) -> Config:
    """The config of a model."""
    shared, text, own = (PUBLISHED[kind][key] for key in ("shared", "text", name))
    return shared | (own if text is None else {"text_config": text | own})


@pytest.mark.parametrize(("kind", "name"), MODELS)
def test_published_configs_mean_what_they_mean_to_transformers(kind: str, name: str) -> None:
    config = published(kind, name)
    said = CONFIG_MAPPING[config["model_type"]].from_dict(json.loads(json.dumps(config))).get_text_config()
    tied = config.get("text_config", config).get("tie_word_embeddings", kind == "gemma3")
    tensors = {"model.embed_tokens.weight": TensorFact((said.vocab_size, said.hidden_size), "BF16")}
    if not tied:
        tensors["lm_head.weight"] = TensorFact((said.vocab_size, said.hidden_size), "BF16")
    if kind == "qwen2_5_vl":
        tensors["model.layers.0.self_attn.q_proj.bias"] = TensorFact((said.hidden_size,), "BF16")
    model = spec_from_config(config, tensors, "x", "config.json").model
    assert model.tie_embeddings == tied
    assert (model.hidden_size, model.num_layers, model.vocab_size, model.context, model.norm.eps) == (
        said.hidden_size,
        said.num_hidden_layers,
        said.vocab_size,
        said.max_position_embeddings,
        said.rms_norm_eps,
    )
    heads = getattr(said, "head_dim", None) or said.hidden_size // said.num_attention_heads
    for index, layer in enumerate(model.layers):
        attention, rope = layer.attention, layer.rope
        of_experts = getattr(said, "moe_intermediate_size", None)
        assert (attention.num_heads, attention.num_kv_heads, attention.head_dim, layer.mlp.intermediate_size) == (
            said.num_attention_heads,
            said.num_key_value_heads,
            heads,
            of_experts or said.intermediate_size,
        )
        if of_experts:
            experts = layer.mlp.experts
            assert experts is not None and experts.normalise
            assert (experts.count, experts.per_token) == (said.num_experts, said.num_experts_per_tok)
        slides = (getattr(said, "layer_types", None) or [""] * said.num_hidden_layers)[index] == "sliding_attention"
        assert attention.sliding_window == (said.sliding_window if slides else None)
        parameters = said.rope_parameters
        parameters = parameters.get("sliding_attention" if slides else "full_attention", parameters)
        assert rope is not None
        assert rope.theta == parameters["rope_theta"]
        kinds = {"default": "none"}
        assert rope.scaling.kind == kinds.get(parameters["rope_type"], parameters["rope_type"])
    scale = getattr(said, "query_pre_attn_scalar", heads) ** -0.5
    assert model.attention.scale is None or model.attention.scale == pytest.approx(scale)
    assert kind != "gemma3" or model.attention.scale is not None


def folder_of(case: str, folder: Path, names: dict[str, str]) -> Path:
    """A case's folder with transformers' tensors; of `names` each key is replaced at the beginning of their names."""
    tensors = {}
    for name, value in cases.weights(case, RECORDED[case].shapes).items():
        begin = next((old for old in names if name.startswith(old)), "")
        tensors[names.get(begin, "") + name.removeprefix(begin)] = mx.array(value)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    (folder / "config.json").write_text(json.dumps(cases.CONFIGS[case]))
    return folder


def error_of(case: str, folder: Path, host: str) -> float:
    """The relative error of the last token's logits."""
    got = logits_of(folder, prompts(cases.VOCAB), host)[0][-1]
    return relative_error([got], [np.array(RECORDED[case].logits)])


AS_PUBLISHED = {"kimi_k25": {"language_model.model.blocks.": "language_model.model.layers."}}
"""Names that transformers 5.24 reads, and writes otherwise: its rule for the images' blocks renames all layers."""
ON_HOSTS = [(case, host) for case in cases.CONFIGS for host in ("reference", "cpu", "sim")]


@pytest.mark.parametrize(("case", "host"), few(ON_HOSTS, [one for one in ON_HOSTS if one[1] == "reference"]))
def test_logits_of_text_are_those_of_transformers(case: str, host: str, tmp_path: Path) -> None:
    assert error_of(case, folder_of(case, tmp_path, AS_PUBLISHED.get(case, {})), host) < TOLERANCE


def test_experts_whose_rows_are_columns(tmp_path: Path) -> None:
    """As published folders have them, and transformers 5 does not save them."""
    folder = folder_of("qwen3_vl_moe", tmp_path, {})
    tensors = mx.load(str(folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    turned = {name: mx.swapaxes(held, 1, 2) for name, held in tensors.items() if ".mlp.experts." in name}
    assert len(turned) == 4
    held = tensors | {name: mx.contiguous(tensor) for name, tensor in turned.items()}
    mx.eval(held)
    mx.save_safetensors(str(folder / "model.safetensors"), held)
    assert error_of("qwen3_vl_moe", folder, "reference") < TOLERANCE


def test_experts_of_another_size_are_refused(tmp_path: Path) -> None:
    config = cases.CONFIGS["qwen3_vl_moe"]
    folder = folder_of("qwen3_vl_moe", tmp_path, {})
    other = config | {"text_config": config["text_config"] | {"moe_intermediate_size": 80}}
    (folder / "config.json").write_text(json.dumps(other))
    with pytest.raises(WeightsError, match=r"experts.down_proj.* got \[5, 96, 128\], expected \[640, 80\]"):
        mlxr.load(folder, host="reference")


OTHER_NAMES = {
    "as transformers has them in memory": {
        "language_model.model.": "model.language_model.",
        "vision_tower.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    },
    "without the other parts' prefix": {"language_model.model.": "model.", "language_model.": ""},
    "without a head": {"language_model.model.": "language_model."},
}


@pytest.mark.parametrize("names", OTHER_NAMES.values(), ids=list(OTHER_NAMES))
def test_prefixes(names: dict[str, str], tmp_path: Path) -> None:
    case = "gemma3, few keys"
    assert error_of(case, folder_of(case, tmp_path, names), "reference") < TOLERANCE


def test_two_names_of_one_tensor_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    same = mx.ones((2, 2))
    mx.save_safetensors(str(path), {"model.norm.weight": same, "language_model.model.norm.weight": same})
    with pytest.raises(WeightsError, match=r"are the same tensor of the model"):
        open_weights(path)


def test_a_note_says_what_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_of("gemma3, few keys", tmp_path, {})
    beside = [name for name in RECORDED["gemma3, few keys"].shapes if not name.startswith("language_model.")]
    file = open_weights(folder)
    assert len(file.beside["images"]) == len(beside)
    numbers = sum(math.prod(RECORDED["gemma3, few keys"].shapes[name]) for name in beside)
    whose = f"{len(beside)} tensors for images ({size(4 * numbers)})"
    note = f"{file.path}: {whose} are left alone; MLXR computes the text model"
    assert note_of_parts(file) == note
    with caplog.at_level(logging.WARNING), mlxr.load(folder, host="reference"):
        assert f"note: {note}" in [record.getMessage() for record in caplog.records]


def mlx_lm_config(case: str) -> Config:
    """The same for mlx-lm, which wants more of the keys."""
    config = json.loads(json.dumps(cases.CONFIGS[case]))
    text = config["text_config"]
    if case.startswith("gemma3"):  # which has an output projection until weights without one are loaded
        return config | {"vocab_size": cases.VOCAB, "tie_word_embeddings": False}
    if case.startswith("gemma4"):
        config["vocab_size"] = cases.VOCAB
    text.setdefault("tie_word_embeddings", config.get("tie_word_embeddings", True))
    return config


def by_layers(path: str, _: object) -> bool | dict[str, Any]:
    """Down projections in 8 bits, the output as it is."""
    return {"group_size": 32, "bits": 8} if "down_proj" in path else "lm_head" not in path


WITHOUT_MLX = ("gemma3, few keys", "step3p7")
MLX_CASES = [(case, quantised) for case in cases.CONFIGS if case not in WITHOUT_MLX for quantised in (False, True)]


@pytest.mark.parametrize(("case", "quantised"), few(MLX_CASES, [(case, True) for case in ("gemma3", "qwen3_vl")]))
def test_logits_are_those_of_mlx_lm(case: str, quantised: bool, tmp_path: Path) -> None:
    config = mlx_lm_config(case)
    config["text_config"] |= {"intermediate_size": 96}
    model = build_model(config)
    if quantised:
        model, config = quantize_model(model, config, bits=4, group_size=32, quant_predicate=by_layers)
        config["quantization_config"] = config["quantization"]
    folder = save_folder(model, config, tmp_path)
    assert all(name.startswith("language_model.") for name, _ in tree_flatten(model.parameters()))
    tokens = prompts(cases.VOCAB)
    error = relative_error(logits_of(folder, tokens, "reference"), mlx_lm_logits(model, tokens))
    assert error < (1e-4 if quantised or case == "gemma3" else TOLERANCE)  # mlx-lm's tanh is an approximation
    weights = import_model(folder, EXACT)[0].weights
    network = "mlp.shared" if "experts" in case or case.startswith(("minimax", "qwen3_5_moe")) else "mlp"
    formats = {f"mlp.{role}": str(weights.of_tensor(f"layers.1.{network}.{role}")) for role in ("down", "up")}
    expected = ("affine8_g32_f32", "affine4_g32_f32") if quantised else ("f32", "f32")
    assert formats == dict(zip(("mlp.down", "mlp.up"), expected, strict=True))


def test_a_quantised_copy_of_the_embedding_table(tmp_path: Path) -> None:
    """mlx-vlm writes one as the output projection, though the embeddings are tied."""
    config = mlx_lm_config("gemma3") | {"tie_word_embeddings": True}
    model, config = quantize_model(build_model(config), config, bits=4, group_size=32)
    output, table = model.language_model.lm_head, model.language_model.model.embed_tokens
    output.weight, output.scales, output.biases = table.weight, table.scales, table.biases
    folder = save_folder(model, config, tmp_path)
    spec, weights = import_model(folder, EXACT)
    assert spec.model.tie_embeddings
    check_tensors_first(spec, weights)
    tokens = prompts(cases.VOCAB)
    assert relative_error(logits_of(folder, tokens, "reference"), mlx_lm_logits(model, tokens)) < 1e-4


def test_what_the_text_model_may_say_of_itself_or_leave_out() -> None:
    config = published("gemma3", "gemma-3-4b-it")
    text = config["text_config"]
    table = {"model.embed_tokens.weight": TensorFact((64, text["hidden_size"]), "BF16")}

    def read(config: Config) -> ModelSpec:
        return spec_from_config(config, table, "x", "config.json")

    unnamed = {key: value for key, value in text.items() if key != "model_type"}
    assert read(config | {"text_config": unnamed}) == read(config)
    whole = {key: value for key, value in config.items() if key != "architectures"}
    assert read(whole | {"text_config": text | {"architectures": ["Gemma3ForCausalLM"]}}) == read(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llava"}, 'model_type is "llava"; that is not supported'),
        (
            {"text_config": {"model_type": "llama"}},
            'model_type is "llama"; that is not supported as a part of "gemma3"',
        ),
        ({"text_config": {"model_type": "gemma9"}}, 'text_config: model_type is "gemma9"; that is not supported'),
        ({"architectures": ["Gemma3ForSequenceClassification"]}, r"\[\.\.\.ForConditionalGeneration\]"),
    ],
)
def test_other_wholes_are_refused_by_name(changes: Config, message: str) -> None:
    config = published("gemma3", "gemma-3-4b-it") | changes
    with pytest.raises(SpecError, match=message):
        spec_from_config(config, {}, "x", "config.json")
