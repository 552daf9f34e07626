"""config.json and GGUF metadata of published models, key by key: all are imported without a flag, as they say.

`data/published_configs.json` has facts: of each family the keys that all its models share, and of each model its own.
Lists that repeat are shortened, and LongRoPE's factors are made up. `data/gguf_metadata.json` has what llama.cpp's
converter of 2026-11 wrote for such configs with smaller sizes, and what some other converters write.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.importers.gguf import FACTOR_TENSORS, spec_from_gguf
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.model import Model
from mlxr_tests.published_configs import PUBLISHED, config_of, first, imported

METADATA: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "gguf_metadata.json").read_text()
)
NOT_ROTATED = ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "granite-4.0-h-350m", "Kimi-Linear-48B-A3B-Instruct")
"""Models whose configs have a rope_theta, and whose attention does not rotate."""


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_configs_are_imported(family: str) -> None:
    for name in PUBLISHED[family]:
        if name == "shared":
            continue
        whole = config_of(name)
        model, config = imported(whole), whole.get("text_config", whole)
        kv_heads = config.get("attn_config", {}).get("kv_n_heads")
        config = config if kv_heads is None else {"num_kv_heads": kv_heads} | config
        attention = model.attention
        said = (
            first(config, "num_hidden_layers", "num_layers", "n_layer", "n_layers"),
            first(config, "hidden_size", "n_embd", "n_embed", "d_model"),
            first(config, "num_attention_heads", "n_head", "n_heads"),
        )
        assert (model.num_layers, model.hidden_size, attention.num_heads) == said, name
        named = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "num_attention_groups")
        kv_heads = next((config[key] for key in named if key in config), 1 if config.get("multi_query") else said[2])
        kv_heads = 1 if attention.latent else kv_heads
        assert attention.num_kv_heads == kv_heads, name
        ropes = [layer.rope for layer in model.layers if layer.rope is not None]
        assert bool(ropes) != (name in NOT_ROTATED) or "rope_theta" not in config, name
        if "rope_theta" in config and ropes:
            thetas = config["rope_theta"] if isinstance(config["rope_theta"], list) else [config["rope_theta"]]
            assert any(rope.theta == pytest.approx(thetas[0], rel=1e-7) for rope in ropes), name
        assert bool(config.get("rope_scaling", {})) >= any(rope.scaling.kind != "none" for rope in ropes) or (
            "rope_parameters" in config
        ), name


def test_what_some_of_them_say() -> None:
    """Properties that would be easy to lose, by the models' own code."""
    mini = imported(config_of("Phi-4-mini-instruct"))
    assert mini.rope is not None and mini.rope.scaling.kind == "longrope"
    assert (mini.rotary_dim, len(mini.rope.scaling.short_factors)) == (96, 48)
    assert mini.rope.scaling.attention_factor == pytest.approx(1.1902380714238083)
    distill = imported(config_of("DeepSeek-R1-0528-Qwen3-8B"))
    assert distill.rope is not None and distill.rope.scaling.kind == "yarn"
    assert distill.rope.scaling.attention_factor is None  # transformers does not read attn_factor
    assert imported(config_of("Qwen2.5-72B-Instruct")).layer_types == {}  # use_sliding_window is false
    assert imported(config_of("starcoder2-3b")).norm.eps == 1e-5
    lfm2 = imported(config_of("LFM2-1.2B"))
    assert [layer.attention is not None for layer in lfm2.layers].count(True) == 6
    assert lfm2.mlp is not None and lfm2.mlp.intermediate_size == 8192
    coder = imported(config_of("Qwen3-Coder-Next"))
    assert [layer.recurrent is None for layer in coder.layers].count(True) == 12 and coder.layer(3).rotary_dim == 64
    assert coder.recurrents[0] is not None and coder.recurrents[0].state_row == (32, 128, 128)
    experts = imported(config_of("Qwen3.6-35B-A3B"))
    assert [layer.recurrent is None for layer in experts.layers].count(True) == 10 and experts.layer(3).rotary_dim == 64
    assert experts.recurrents[0] is not None and experts.recurrents[0].state_row == (32, 128, 128)
    exaone = imported(config_of("EXAONE-4.0-32B"))
    assert [exaone.layer(i).attention.sliding_window for i in range(4)] == [4096, 4096, 4096, None]
    assert [exaone.layer(i).rope is None for i in range(4)] == [False, False, False, True]
    assert imported(config_of("EXAONE-4.0-1.2B")).layer(3).rope is not None
    assert imported(config_of("gemma-2-27b-it")).attention.scale == 144**-0.5
    assert imported(config_of("Mistral-7B-v0.1")).attention.sliding_window == 4096
    assert imported(config_of("Mistral-7B-Instruct-v0.2")).attention.sliding_window is None
    granite = imported(config_of("granite-3.1-8b-instruct"))
    assert (granite.logit_scale, granite.residual_scale, granite.attention.scale) == (1 / 16, 0.22, 0.0078125)


def test_what_some_with_recurrent_layers_say() -> None:
    """Sizes of the models' own cards, and what their code makes of the rest."""
    nemotron = imported(config_of("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"))
    kinds = [
        (layer.recurrent is not None, layer.attention is not None, layer.mlp is not None) for layer in nemotron.layers
    ]
    assert [kinds.count(tuple(kind == i for i in range(3))) for kind in range(3)] == [23, 6, 23]
    ssm, mlp = nemotron.layers[0].recurrent, nemotron.layers[1].mlp
    assert ssm is not None and ssm.kind == "ssm" and mlp is not None and mlp.experts is not None
    assert (ssm.num_heads, ssm.head_dim, ssm.state_dim, ssm.num_groups) == (64, 64, 128, 8)
    assert (mlp.experts.count, mlp.experts.per_token, mlp.intermediate_size) == (128, 6, 1856)
    granite = imported(config_of("granite-4.0-h-350m"))
    assert [i for i, layer in enumerate(granite.layers) if layer.recurrent is None] == [10, 13, 17, 27]
    assert all(layer.mlp is not None and layer.mlp.intermediate_size == 2048 for layer in granite.layers)
    kimi = imported(config_of("Kimi-Linear-48B-A3B-Instruct"))
    assert [i for i, layer in enumerate(kimi.layers) if layer.recurrent is None] == [3, 7, 11, 15, 19, 23, 26]
    delta, latent, mlp = kimi.layers[0].recurrent, kimi.layers[3].attention, kimi.layers[1].mlp
    assert delta is not None and delta.state_row == (32, 128, 128) and delta.rank == 128 and delta.channel_decays
    assert latent is not None and latent.latent is not None and latent.latent.row_dim == 576 and latent.head_dim == 192
    assert kimi.layers[0].mlp.experts is None and mlp.experts is not None and mlp.experts.shared is not None
    assert (mlp.experts.count, mlp.experts.per_token, mlp.experts.scale, mlp.intermediate_size) == (256, 8, 2.446, 1024)
    falcon = imported(config_of("Falcon-H1-0.5B-Instruct"))
    assert all(layer.recurrent is not None and layer.attention is not None for layer in falcon.layers)


def test_what_some_with_experts_say() -> None:
    """Numbers of the models' own cards: experts, those that every token goes through, first layers without."""
    glm = imported(config_of("GLM-4.5"))
    first, experts = glm.layer(2).mlp, glm.layer(3).mlp.experts
    assert (first.experts, first.intermediate_size) == (None, 12288)
    assert experts is not None and experts.shared is not None and experts.groups is None
    assert (experts.count, experts.per_token, experts.scale, experts.shared.intermediate_size) == (160, 8, 2.5, 1536)
    assert (experts.router, experts.selection_bias, experts.normalise) == ("sigmoid", True, True)
    assert (glm.rotary_dim, glm.attention.qk_norm is None) == (64, False)
    assert imported(config_of("GLM-4.5-Air")).attention.qk_norm is None
    m2 = imported(config_of("MiniMax-M2"))
    assert (m2.rotary_dim, m2.attention.qk_norm and m2.attention.qk_norm.scope) == (64, "all")
    m3 = imported(config_of("MiniMax-M3 (NVIDIA's, without its quantisation)"))
    assert (m3.rotary_dim, m3.context, m3.layer(2).mlp.experts, m3.layer(2).mlp.limit) == (64, 2048, None, 7)
    kimi = imported(config_of("Kimi-K2.5"))
    assert (kimi.context, kimi.layer(1).mlp.experts and kimi.layer(1).mlp.experts.count) == (262144, 384)
    for name in ("DeepSeek-V3.2", "GLM-5", "GLM-5.2"):
        assert imported(config_of(name)).context == 2048
    kimi_2 = imported(config_of("Kimi-K2-Instruct")).rope
    assert kimi_2 is not None and kimi_2.scaling.kind == "yarn"
    assert kimi_2.scaling.beta_fast == kimi_2.scaling.beta_slow == 1
    mimo = imported(config_of("MiMo-V2-Flash"))
    heads = [(a.num_kv_heads, a.head_dim, a.v_dim, a.sliding_window, a.sinks) for a in mimo.attentions]
    assert heads == [(4, 192, 128, None, False), (8, 192, 128, 129, True)]
    assert [layer.attention.sinks for layer in mimo.layers].count(False) == 9
    assert (mimo.rotary_dim, mimo.attention.value_scale, mimo.layer(0).mlp.experts) == (64, 0.707, None)
    qwen = imported(config_of("Qwen1.5-MoE-A2.7B-Chat")).mlp.experts
    assert qwen is not None and qwen.shared is not None and not qwen.normalise
    assert (qwen.shared.intermediate_size, qwen.shared.gate) == (5632, True)
    command = imported(config_of("c4ai-command-r7b-12-2024"))
    assert [command.layer(i).rope is None for i in range(4)] == [False, False, False, True]
    assert [command.layer(i).attention.sliding_window for i in range(4)] == [4096, 4096, 4096, None]


def test_what_dbrx_says_in_sections() -> None:
    dbrx = imported(config_of("dbrx-instruct"))
    assert (dbrx.attention.num_kv_heads, dbrx.attention.head_dim, dbrx.attention.qkv_limit) == (8, 128, 8)
    assert (dbrx.norm.kind, dbrx.rope and dbrx.rope.theta, dbrx.mlp.intermediate_size) == ("layer", 5e5, 10752)
    experts = dbrx.mlp.experts
    assert experts is not None and experts.normalise and (experts.count, experts.per_token) == (16, 4)


def test_what_step_says_of_each_layer() -> None:
    step = imported(config_of("Step-3.5-Flash"))
    assert [(a.num_heads, a.sliding_window) for a in step.attentions] == [(64, None), (96, 512)]
    turns = [(rope.theta, rope.scaling.kind) for layer in step.layers if (rope := layer.rope) is not None]
    assert turns == [(5e6, "llama3") if i % 4 == 0 else (1e4, "none") for i in range(45)]
    assert [layer.rotary_dim for layer in step.layers[:2]] == [64, 128]
    limits = [(layer.mlp.limit, layer.mlp.limit_of_shared) for layer in step.layers]
    assert limits == [(None, None)] * 43 + [(7.0, 16.0)] * 2
    assert [layer.mlp.experts is None for layer in step.layers] == [True] * 3 + [False] * 42


def from_metadata(name: str) -> Model:
    """What the importer makes of GGUF metadata, beside the tensors from which it learns something."""
    architecture, keys = METADATA[name]["architecture"], METADATA[name]["keys"]
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()} | {"general.architecture": architecture}
    tensors = {held: TensorFact((8,), "F32") for held in METADATA[name]["tensors"]}
    tensors["token_embd.weight"] = TensorFact((keys.get("vocab_size", 320), keys["embedding_length"]), "F16")
    heads = keys.get("attention.key_length", keys["embedding_length"] // keys["attention.head_count"])
    pairs = keys.get("rope.dimension_count", heads) // 2
    factors = {held: [1.0] * (pairs - 1) + [8.0] for held in tensors if held in FACTOR_TENSORS}
    return spec_from_gguf(metadata, tensors, "x", "x.gguf", factors=factors).model


def test_metadata_of_converters_are_imported() -> None:
    for name, entry in METADATA.items():
        model, keys = from_metadata(name), entry["keys"]
        layers = keys["block_count"] - keys.get("nextn_predict_layers", 0)
        assert (model.num_layers, model.hidden_size) == (layers, keys["embedding_length"]), name
        window = keys.get("attention.sliding_window") or None
        pattern = keys.get("attention.sliding_window_pattern")
        windows = [layer.attention.sliding_window for layer in model.layers]
        assert set(windows) <= {window, None}, name
        if pattern and window:
            assert windows == [window if slides else None for slides in pattern], name
        assert (model.attention.temperature is None) == ("attention.temperature_scale" not in keys), name


def test_what_some_of_the_metadata_say() -> None:
    olmo = from_metadata("Olmo-3-7B-Instruct")
    ropes = [layer.rope for layer in olmo.layers[:4]]
    assert [rope.scaling.kind for rope in ropes if rope is not None] == ["none", "none", "none", "yarn"]
    exaone = from_metadata("EXAONE-4.0-32B")
    assert [exaone.layer(i).rope is None for i in range(4)] == [False, False, False, True]
    granite = from_metadata("granite-4.0-micro")
    assert granite.rope is not None and granite.mlp.experts is None
    gemma = from_metadata("gemma-3-1b-it, by Ollama")
    thetas = [layer.rope.theta for layer in gemma.layers if layer.rope is not None]
    assert thetas[4:6] == [1e4, 1e6]
    flash = from_metadata("GLM-4.7-Flash").layer(1).mlp.experts
    assert flash is not None and (flash.router, flash.selection_bias) == ("sigmoid", True)
