"""config.json as transformers writes and reads it: every key is known, and the numbers are those of published models.

No weights are needed for that: a config is imported beside the tensors that say which biases and outputs there are.
"""

import ast
import functools
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.config import spec_from_config
from mlxr.compiler.importers.rules import architectures, load_rules
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.family import load_family
from mlxr.compiler.spec.model import Model

Config = dict[str, Any]
OWN_CODE = ("baichuan", "chatglm", "hunyuan", "internlm2", "kimi_k2", "mimo", "minicpm", "minimax")
"""Architectures whose config transformers does not know: they bring code of their own."""
FLAT = ("qwen2_5_vl",)
"""Architectures that transformers takes for wholes with a text model, also where the keys of both are side by side."""
KINDS = [one.name for one in architectures("config") if one.name not in (*OWN_CODE, *FLAT)]
FAMILIES = {one.name: one.family for one in architectures("config")}
BIASES = {
    "attention.q_bias": ("attention_bias", "use_bias", "use_qkv_bias", "qkv_bias"),
    "mlp.up_bias": ("mlp_bias", "use_bias"),
}


BY_KIND: dict[str, Config] = {
    "bloom": {"hidden_size": 1024},
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1408},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "glm4_moe": {"hidden_size": 12288},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
}
"""Keys of which transformers' defaults make no model."""


def own_name(kind: str, key: str) -> str:
    """What a family's own config calls a key."""
    return str(CONFIG_MAPPING[kind].attribute_map.get(key, key)) if kind in CONFIG_MAPPING else key


def imported(config: Config) -> Model:
    names = load_family(FAMILIES[config["model_type"]]).tensors
    hidden = config[own_name(config["model_type"], "hidden_size")]
    tensors = {}
    for role in ("embedding", "output"):
        if role == "embedding" or not config.get("tie_word_embeddings"):
            entry = names.get(role)
            if entry is None:  # encoders have no output
                continue
            tensors[entry.safetensors[0].tensor] = TensorFact((config["vocab_size"], hidden), "BF16")
    for role, keys in BIASES.items():
        entry = names.get(f"layers.{{i}}.{role}")
        if entry is not None and any(config.get(key) for key in keys):
            tensors[entry.safetensors[0].tensor.replace("{i}", "0")] = TensorFact((8,), "BF16")
    return spec_from_config(config, tensors, "x", "config.json").model


def default_config(kind: str) -> Config:
    """All keys, with transformers' own defaults."""
    config: Config = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    if kind == "granitemoehybrid":  # whose defaults have Mamba layers and experts
        config |= {"layer_types": ["attention"] * config["num_hidden_layers"], "num_local_experts": 0}
    config |= BY_KIND.get(kind, {})
    return {**config, "model_type": kind, "architectures": None}


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_that_transformers_writes_is_known(kind: str) -> None:
    config = default_config(kind)
    model = imported(config)
    if kind == "nemotron_h":
        config["num_hidden_layers"] = len(config["layers_block_type"])
    found = {"hidden_size": model.hidden_size, "num_hidden_layers": model.num_layers}
    found |= {} if model.attention is None else {"num_attention_heads": model.attention.num_heads}
    assert found == {key: config[own_name(kind, key)] for key in found}


SAID = (
    "_size",
    "num_",
    "n_embd",
    "d_model",
    "n_routed",
    "n_shared",
    "layer_types",
    "rope_parameters",
    "original_max",
    "model_type",
    "max_position",
    "bias",
    "tie_",
)
"""Parts of keys that any config has: their values are among the tensors, or versions of transformers differ."""


@pytest.mark.parametrize("kind", KINDS)
def test_missing_keys_mean_what_they_mean_to_transformers(kind: str) -> None:
    config = default_config(kind)
    few = {key: value for key, value in config.items() if key == "dim" or any(part in key for part in SAID)}
    assert imported(few) == imported(config)


def test_keys_that_no_code_reads_change_nothing() -> None:
    """Such as published models have, of their training or of other families."""
    phi = {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False}
    starcoder = {"attention_softmax_in_fp32": True, "scale_attn_weights": True, "layer_norm_epsilon": 1e-5}
    smollm = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}}
    for kind, keys in (("phi3", phi), ("starcoder2", starcoder), ("llama", smollm | {"activation": "swiglu"})):
        assert imported(default_config(kind) | keys) == imported(default_config(kind))


def test_of_minimax_s_models_those_with_attention_alone_are_read() -> None:
    """Text 01 has layers without a softmax under the name that first configs of M2 have."""
    config = default_config("minimax")
    with pytest.raises(SpecError, match=r"layer_types"):
        imported(config)
    with pytest.raises(SpecError, match=r"'block_size' = 256.*'full_attn_alpha_.*'linear_attn_alpha_"):
        imported({key: value for key, value in config.items() if key != "layer_types"})
    assert imported(default_config("minimax_m2") | {"model_type": "minimax"}) == imported(default_config("minimax_m2"))


def test_exaone_s_own_keys_mean_what_those_of_transformers_mean() -> None:
    own = {"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function"}
    config = default_config("exaone") | {"num_hidden_layers": 3, "rms_norm_eps": 1e-3, "hidden_act": "gelu"}
    model = imported(config)
    assert (model.num_layers, model.norm.eps, model.mlp.activation) == (3, 1e-3, "gelu")
    assert imported({own.get(key, key): value for key, value in config.items()}) == model
    with pytest.raises(SpecError, match=r"num_hidden_layers is 4; expected 3"):
        imported(config | {"num_layers": 3, "num_hidden_layers": 4})


def test_kimi_linear_s_lists_of_layers_count_from_1() -> None:
    """Without them transformers takes every fourth layer, behind the first one. Kimi K3 has more under the name."""
    config = {key: value for key, value in default_config("kimi_linear").items() if key != "layer_types"}
    lists = {"full_attn_layers": [2, 3], "kda_layers": [layer for layer in range(1, 28) if layer not in (2, 3)]}

    def attending(more: Config) -> list[int]:
        return [i for i, layer in enumerate(imported(config | more).layers) if layer.attention is not None]

    assert attending({}) == [4, 8, 12, 16, 20, 24] and attending({"linear_attn_config": lists}) == [1, 2]
    with pytest.raises(SpecError, match=r"gate_lower_bound is -5.0; expected null"):
        attending({"linear_attn_config": lists | {"gate_lower_bound": -5.0}})


NO_MATTER = {
    *("attention_dropout", "embedding_dropout", "hidden_dropout", "residual_dropout", "resid_pdrop"),
    *(
        "attn_pdrop",
        "classifier_dropout",
        "emb_pdrop",
        "moe_jitter_eps",
        "embd_pdrop",
        "num_labels",
        "problem_type",
        "summary_activation",
    ),
    *("summary_first_dropout", "summary_last_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    *("attention_softmax_in_fp32", "reorder_and_upcast_attn", "scale_attention_softmax_in_fp32"),
    *("initializer_range", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
    *("_attn_implementation", "_is_quantized", "dtype", "pad_token_id"),
    *("output_attentions", "output_hidden_states", "return_dict", "use_cache"),
    # Of models with images, in the same file.
    *("get_text_config", "image_token_id", "mm_tokens_per_image", "text_config", "vision_config", "video_token_id"),
    *("deepstack_visual_indexes", "depth", "fullatt_block_indexes", "in_channels", "num_heads", "out_hidden_size"),
    *("num_position_embeddings", "patch_size", "spatial_merge_size", "temporal_patch_size", "tokens_per_second"),
    *("image_size", "num_channels", "pixel_shuffle_ratio", "projector_dropout", "projector_input_dim"),
    *("projector_output_dim", "projector_bias", "layer_scale_init_value"),
    *("vision_end_token_id", "vision_start_token_id", "window_size"),
    *("attention_context_left", "attention_context_right", "attention_invalid_logits_value", "attention_logit_cap"),
    *("audio_config", "audio_token_id", "conv_kernel_size", "gradient_clipping", "output_proj_dims"),
    *("pooling_kernel_size", "position_embedding_size", "residual_weight", "standardize", "use_clipped_linears"),
    "subsampling_conv_channels",
    # Of encoders: dropouts, how a product is cut, and what models of several parts say.
    *("attention_probs_dropout_prob", "hidden_dropout_prob", "chunk_size_feed_forward", "embedding_size"),
    *("is_encoder_decoder", "classifier_activation", "classifier_bias", "classifier_pooling", "decoder_bias"),
    *("deterministic_flash_attn", "initializer_cutoff_factor", "mlp_dropout", "sparse_prediction"),
    *("sparse_pred_ignore_index", "sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "dropout"),
    "num_nextn_predict_layers",  # Step-3.7's: layers that guess further tokens are left alone
    "kv_sharing_modes",  # Gemma 4's, which is computed from num_kv_shared_layers
    *("image_size", "num_channels", "output_attentions", "output_hidden_states", "pixel_shuffle_ratio"),
    *("projector_dropout", "projector_input_dim", "projector_output_dim", "return_dict"),
    "attention_chunk_size",  # of layers of a type that Llama 4 alone has
    "attn_logit_softcapping",  # Gemma 3 alone, whose code reads it and does nothing with it
    "use_bidirectional_attention",  # Gemma 1 and 2, likewise
    *("pretraining_tp", "slow_but_exact"),  # BLOOM's, for the rounding of sums in 16 bits
    # Of Mamba-2: how prompts are cut, how models begin to be trained, and what other keys say.
    *("chunk_size", "expand", "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_max"),
    *("time_step_rank", "num_logits_to_keep", "use_mamba_kernels"),
}
"""Keys that transformers reads, and that change no logits."""


MODULES = {
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "exaone": "llama",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "internlm3": "llama",
    "llama4_text": "llama4",
    "minimax_m3_vl_text": "minimax_m3_vl",
    "qwen2_5_vl_text": "qwen2_5_vl",
    "qwen3_vl_moe_text": "qwen3_vl_moe",
    "qwen3_vl_text": "qwen3_vl",
    "step3p5": "step3p7",
    "xlm-roberta": "xlm_roberta",
}
"""Modules of families that have none of their own name."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_that_the_familys_own_code_reads_is_known(kind: str) -> None:
    """Keys that nobody knows are ignored, so none that transformers reads may be among them."""
    rules = next(one.rules for one in architectures("config") if one.name == kind)
    own = [pattern for pattern in rules.harmless if pattern not in load_rules("config").harmless]
    known = {*_words(rules.set), *_words(rules.must_equal), *rules.must_equal, *rules.neutral, *NO_MATTER, "vocab_size"}
    known |= {"rope_parameters", "original_max_position_embeddings"}  # the importer's own code reads them
    known |= {part for key in known for part in key.split(".")}  # of sections
    found = find_spec("transformers")
    assert found is not None and found.origin is not None
    folder, module = Path(found.origin).parent, MODULES.get(kind, kind)
    for path in (folder / "models" / module / f"modeling_{module}.py", folder / "masking_utils.py"):
        read = _keys_read(path)
        assert len(read) > 3
        assert not {key for key in read - known if not any(re.fullmatch(pattern, key) for pattern in own)}


def _words(expression: Any) -> Iterator[str]:
    if isinstance(expression, str):
        yield expression
    items = expression.values() if isinstance(expression, dict) else expression if isinstance(expression, list) else ()
    for item in items:
        yield from _words(item)


@functools.cache
def _keys_read(path: Path) -> set[str]:
    """Attributes of everything called config, and those that getattr asks it for."""
    read = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and _is_config(node.value):
            read.add(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            of, name = node.args[:2]
            if _is_config(of) and isinstance(name, ast.Constant):
                read.add(str(name.value))
    return read


def _is_config(node: ast.expr) -> bool:
    return getattr(node, "id", getattr(node, "attr", "")) == "config"


GEMMA_3_1B: Config = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
    "vocab_size": 262144,
}
GPT_OSS_20B: Config = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}


def test_gemma_3() -> None:
    for config in (
        GEMMA_3_1B,
        {key: value for key, value in GEMMA_3_1B.items() if not key.startswith("rope_")}
        | {
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4 + ["sliding_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_theta": 1000000, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 10000, "rope_type": "default"},
            },
        },
    ):
        model = imported(config)
        full, sliding = model.layer(5), model.layer(4)
        assert full.rope is not None and sliding.rope is not None
        assert (full.rope.theta, full.attention.sliding_window) == (1e6, None)
        assert (sliding.rope.theta, sliding.attention.sliding_window) == (1e4, 512)
        assert (model.attention.scale, model.embedding_scale) == (1 / 16, 1152**0.5)
        assert model.norm.placement == "sandwich"


def test_gpt_oss() -> None:
    model = imported(GPT_OSS_20B)
    assert model.rope is not None
    assert model.rope.scaling.model_dump() == {
        "kind": "yarn",
        "factor": 32.0,
        "original_context": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": None,
        "truncate": False,
    }
    assert [model.layer(i).attention.sliding_window for i in range(3)] == [128, None, 128]
    assert (model.attention.sinks, model.mlp.activation, model.mlp.limit) == (True, "swiglu_oai", 7.0)


def test_laguna_s_generations() -> None:
    """The keys with which XS.2, XS 2.1 and M.1 say what differs between them."""
    full = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 32.0, "original_max_position_embeddings": 8192}
    rope = {"full_attention": full | {"beta_fast": 64.0, "attention_factor": 1.25, "partial_rotary_factor": 0.5}}
    sliding = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
    config = default_config("laguna") | {"num_hidden_layers": 4, "num_attention_heads": 48, "sliding_window": 512}
    windows = {
        "layer_types": ["full_attention", *["sliding_attention"] * 3],
        "mlp_layer_types": ["dense", *["sparse"] * 3],
        "num_attention_heads_per_layer": [48, 64, 64, 64],
        "rope_parameters": rope | {"sliding_attention": sliding, "original_max_position_embeddings": 8192},
    }
    xs2 = imported(config | windows | {"gating": True, "partial_rotary_factor": 0.5})
    own = {"gating_types": ["per_head"] * 4, "mlp_only_layers": [0], "decoder_sparse_step": 1, "norm_topk_prob": True}
    assert imported(config | windows | own | {"gating": "per-head"}) == xs2
    assert [xs2.layer(i).attention.num_heads for i in range(4)] == [48, 64, 64, 64]
    assert [xs2.layer(i).attention.sliding_window for i in range(4)] == [None, 512, 512, 512]
    rotated = [layer.rope for layer in xs2.layers if layer.rope is not None]
    assert [(rope.theta, rope.fraction, rope.scaling.kind) for rope in rotated[:2]] == [
        (5e5, 0.5, "yarn"),
        (1e4, 1.0, "none"),
    ]
    m1 = {"num_attention_heads_per_layer": None, "layer_types": None, "mlp_layer_types": ["dense"] * 3 + ["sparse"]}
    m1 |= {"sliding_window": 0, "rope_parameters": rope, "gating": "per-element"}
    element = imported(config | m1)
    assert [element.layer(i).attention.sliding_window for i in range(4)] == [None] * 4
    assert [element.layer(i).mlp.experts is None for i in range(4)] == [True] * 3 + [False]
    gates = [model.layer(0).attention.output_gate for model in (xs2, element)]
    assert [gate.scope for gate in gates if gate is not None] == ["head", "element"]


def test_qwen_windows_begin_after_the_first_layers() -> None:
    config = default_config("qwen2") | {"num_hidden_layers": 4, "sliding_window": 64, "use_sliding_window": True}
    config |= {"layer_types": None, "max_window_layers": 3}
    assert [imported(config).layer(i).attention.sliding_window for i in range(4)] == [None, None, None, 64]
    assert imported(config | {"use_sliding_window": False}).layer_types == {}


def test_a_list_of_layers_that_leaves_some_out_is_refused() -> None:
    """It would be taken for a pattern that repeats."""
    with pytest.raises(SpecError, match=r"layer_types is a list of 24; expected .* for each of 26 layers"):
        imported(GEMMA_3_1B | {"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4})


def test_longrope_knows_the_context_that_the_model_is_made_for() -> None:
    factors = {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"}
    config = default_config("phi3") | {"rope_parameters": None, "rope_scaling": factors}
    model = imported(config | {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096})
    # transformers 5 saves the original context in both places
    new = {"rope_theta": 10000.0, "rope_type": "longrope", "original_max_position_embeddings": 4096} | factors
    saved = {"rope_scaling": None, "rope_parameters": new, "max_position_embeddings": 131072}
    assert imported(config | saved | {"original_max_position_embeddings": 4096}) == model
    with pytest.raises(SpecError, match="original_max_position_embeddings is 4096; expected 8192, as original_max_pos"):
        imported(config | saved | {"original_max_position_embeddings": 8192})
    assert model.rope is not None and model.rope.scaling.kind == "longrope"
    assert model.rope.scaling.attention_factor == pytest.approx(1.1902380714238083)
