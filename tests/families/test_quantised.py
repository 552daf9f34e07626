"""Folders that mlx-lm quantised, and MXFP4 experts as Hugging Face has them, read in the bytes they came in."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model

from mlxr.compiler.errors import PlanError, SpecError
from mlxr.loading.imported_model import import_model
from mlxr_tests.family_models import Config, build_model, config_of, save_folder
from mlxr_tests.family_oracle import EXACT, logits_of, mlx_lm_logits, prompts, relative_error
from mlxr_tests.few import few
from mlxr_tests.kimi_models import KIMI
from mlxr_tests.split_logits import check_split

TOLERANCE = 1e-4
WIDE: Config = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64}
WIDE |= {"shared_expert_intermediate_size": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 64}
WIDE |= {"linear_attn_config": KIMI["kimi_linear"]["linear_attn_config"] | {"head_dim": 32}}


def by_layers(path: str, _: object) -> bool | dict[str, Any]:
    """Down projections in 8 bits, the last layer's keys in 3, norms and the output as they are."""
    if "down_proj" in path:
        return {"group_size": 32, "bits": 8}
    if path == "model.layers.1.self_attn.k_proj":
        return {"group_size": 128, "bits": 3}
    return "lm_head" not in path


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "2 bits": ("llama", {"bits": 2, "group_size": 32}),
    "3 bits, grouped wqkv": ("internlm2", {"bits": 3, "group_size": 64}),
    "4 bits": ("llama, llama3 scaling", {"bits": 4, "group_size": 64}),
    "5 bits, fused qkv and gate_up": ("phi3, partial", {"bits": 5, "group_size": 64}),
    "6 bits, norm offsets": ("gemma", {"bits": 6, "group_size": 128}),
    "8 bits": ("qwen2", {"bits": 8, "group_size": 64}),
    "by layers": ("qwen3", {"bits": 4, "group_size": 64, "quant_predicate": by_layers}),
    "experts, 8-bit router": ("qwen3_moe", {"bits": 4, "group_size": 32}),
    "groups of experts and shared ones": ("glm4_moe", {"bits": 4, "group_size": 32}),
    "a gate of one row": ("qwen2_moe", {"bits": 4, "group_size": 32}),
    "all heads' norms": ("minimax_m2", {"bits": 8, "group_size": 32}),
    "a table of positions": ("gpt2", {"bits": 8, "group_size": 32}),
    "learned numbers of an activation": ("apertus", {"bits": 4, "group_size": 32}),
    "rows of one projection": ("lfm2_moe", {"bits": 4, "group_size": 32}),
    "Mamba-2 and experts": ("nemotron_h, experts", {"bits": 4, "group_size": 32}),
    "Mamba-2 beside attention": ("falcon_h1", {"bits": 4, "group_size": 32}),
    "two projections of decays": ("kimi_linear", {"bits": 4, "group_size": 32}),
    "mxfp4": ("qwen3", {"bits": 4, "group_size": 32, "mode": "mxfp4"}),
    "mxfp4 experts": ("gpt_oss", {"bits": 4, "group_size": 32, "mode": "mxfp4"}),
}
ROUTER_BITS = {"group_size": 64, "bits": 8, "mode": "affine"}


def quantised_folder(case: str, folder: Path) -> tuple[Any, Config]:
    """mlx-lm's quantised model, saved."""
    name, options = CASES[case]
    config = config_of(name)
    config |= {key: value for key, value in WIDE.items() if key in config}
    if "head_dim" in config and "linear_attn_config" not in config:
        config |= {"num_attention_heads": 4}
    options = dict(options)
    if options.get("mode") == "mxfp4":  # mlx-lm's own predicate gives routers 8 bits, which mxfp4 has not
        options["quant_predicate"] = lambda path, _: ROUTER_BITS if path.endswith("router") else True
    model, config = quantize_model(build_model(config), config, **options)
    save_folder(model, config | {"quantization_config": config["quantization"]}, folder)
    return model, config


ON_HOSTS = [(case, host) for case in CASES for host in ("reference", "cpu", "sim")]
ON_CPU = [("mxfp4 experts", "cpu")]


@pytest.mark.parametrize(("case", "host"), few(ON_HOSTS, [*ON_HOSTS[::3], *ON_CPU]))
def test_logits_are_those_of_mlx_lm(case: str, host: str, tmp_path: Path) -> None:
    model, config = quantised_folder(case, tmp_path)
    tokens = prompts(config["vocab_size"])
    assert relative_error(logits_of(tmp_path, tokens, host), mlx_lm_logits(model, tokens)) < TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_two_ranks(case: str, tmp_path: Path) -> None:
    model, config = quantised_folder(case, tmp_path)
    tokens = prompts(config["vocab_size"])
    if case.startswith("6 bits"):
        with pytest.raises(PlanError, match=r"blocks of 128 columns"):
            check_split(tmp_path, tokens, [], TOLERANCE)
    else:
        check_split(tmp_path, tokens, mlx_lm_logits(model, tokens), TOLERANCE)


def test_formats_are_those_of_the_layers(tmp_path: Path) -> None:
    quantised_folder("by layers", tmp_path)
    weights = import_model(tmp_path, EXACT)[0].weights
    formats = {name: str(weights.of_tensor(f"layers.{name}")) for name in ("0.mlp.down", "1.attention.k", "0.mlp.up")}
    assert formats == {
        "0.mlp.down": "affine8_g32_f32",
        "1.attention.k": "affine3_g128_f32",
        "0.mlp.up": "affine4_g64_f32",
    }
    assert str(weights.of_tensor("output")) == "f32"


@pytest.mark.parametrize("host", few(["reference", "cpu", "sim"], ["reference"]))
def test_experts_as_hugging_face_has_them(host: str, tmp_path: Path) -> None:
    """Gate and up rows by turns, blocks of 16 bytes as a dimension of their own."""
    model, config = quantised_folder("mxfp4 experts", tmp_path / "mlx")
    weights = {name: np.array(value) for name, value in tree_flatten(model.parameters())}
    found = {name: value for name, value in weights.items() if ".experts." not in name}
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts"
        for end, new in ((".weight", "_blocks"), (".scales", "_scales"), (".bias", "_bias")):
            gate, up, down = (weights[f"{prefix}.{part}_proj{end}"] for part in ("gate", "up", "down"))
            both = np.stack([gate, up], axis=2).reshape(gate.shape[0], -1, *gate.shape[2:])
            for part, value in (("gate_up", both), ("down", down)):
                blocks = value.view(np.uint8).reshape(*value.shape[:2], -1, 16) if end == ".weight" else value
                found[f"{prefix}.{part}_proj{new}"] = blocks
    folder = tmp_path / "hf"
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), {name: mx.array(value) for name, value in found.items()})
    settings = {name: value for name, value in config["quantization"].items() if isinstance(value, dict)}
    config = {name: value for name, value in config.items() if name != "quantization"}
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    config["quantization"] = {"bits": 4, "group_size": 32, "mode": "mxfp4"} | settings
    (folder / "config.json").write_text(json.dumps(config))
    tokens = prompts(config["vocab_size"])
    oracle = load_model(folder)[0]
    assert relative_error(mlx_lm_logits(oracle, tokens), mlx_lm_logits(model, tokens)) < 1e-6
    assert relative_error(logits_of(folder, tokens, host), mlx_lm_logits(oracle, tokens)) < TOLERANCE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"quantization": {"bits": 4, "group_size": 16, "mode": "nvfp3"}},
            'mode "nvfp3" is not supported; supported: ',
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 5, "group_size": 32}}, 'quantised by "gptq"'),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, 'quantised by "bitsandbytes"'),
        ({"quantization": {"bits": 2, "group_size": 64}}, "its settings are bits 2, group_size 64: no quantisation"),
        ({"quantization": {"bits": 7, "group_size": 64}}, "its settings are bits 7"),
    ],
)
def test_other_quantisations_are_refused_by_name(settings: Config, message: str, tmp_path: Path) -> None:
    _, config = quantised_folder("8 bits", tmp_path)
    config = {name: value for name, value in config.items() if not name.startswith("quantization")}
    (tmp_path / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(SpecError, match=message):
        import_model(tmp_path, EXACT)


@pytest.mark.parametrize("case", ["4 bits", "by layers"])
def test_settings_that_are_null_are_mlx_s_own(case: str, tmp_path: Path) -> None:
    """mlx-lm's mixed recipes name the settings of each layer, and null for all."""
    _, config = quantised_folder(case, tmp_path)
    before = import_model(tmp_path, EXACT)[0]
    for key in ("quantization", "quantization_config"):
        config[key] = config["quantization"] | {"group_size": None, "bits": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert import_model(tmp_path, EXACT)[0] == before
