"""GGUF files of the tiny models: tensors where the family's recipes expect them, metadata as llama.cpp's converter.

The metadata are written by hand here, key by key, so that they test the importer."""

import json
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np

from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.targets.source_graph import source_weights
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights.head_tensors import require_head
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.tensor_rows import selected
from mlxr_tests import (
    config_effects,
    dbrx_models,
    gemma_4_models,
    gguf_changes,
    indexer_gguf,
    latent_gguf,
    mimo_models,
    ssm_models,
    step_models,
)
from mlxr_tests.alibi_models import GGUF as ALIBI
from mlxr_tests.family_models import WINDOW, build_model, config_of, save_folder
from mlxr_tests.family_oracle import EXACT
from mlxr_tests.kimi_models import GGUF as KIMI
from mlxr_tests.lfm2_models import GGUF as LFM2
from mlxr_tests.qwen_delta_models import GGUF as QWEN_DELTA

_EXPERTS = {"expert_count": 5, "expert_used_count": 2}
GROUPED = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_feed_forward_length": 40,
    "expert_shared_count": 2,
    "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
}
_LAYER_NORM = {"attention.layer_norm_epsilon": 1e-4}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {}),
    "llama, linear scaling": ("llama", "llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "llama, yarn": (
        "llama",
        "llama",
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16},
    ),
    "baichuan": ("llama, 32 layers", "baichuan", {}),
    "llama, divisors": ("llama", "llama", {"rope.scaling.yarn_attn_factor": 0.7}),
    "ministral3": (
        "ministral3",
        "mistral3",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.3,
        },
    ),
    "mistral3, no temperature": ("mistral", "mistral3", {}),
    "mixtral": ("mixtral", "llama", _EXPERTS),
    "qwen2": ("qwen2", "qwen2", {}),
    "qwen3": ("qwen3", "qwen3", {}),
    # llama.cpp takes every third pair of a section, and does not rotate those that are left over.
    "qwen3_vl": ("qwen3", "qwen3vl", {"rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 1}),
    "qwen3_vl_moe": (
        "qwen3_moe",
        "qwen3vlmoe",
        _EXPERTS | {"expert_feed_forward_length": 40, "rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 1},
    ),
    "qwen2_5_vl": ("qwen2, output", "qwen2vl", {"rope.dimension_sections": [4, 6, 6, 0]}),
    # What a layer says of itself, and a layer that guesses further tokens.
    "glm4, a guessing layer": (
        "glm4",
        "glm4",
        {
            "rope.dimension_count": 16,
            "block_count": 3,
            "nextn_predict_layers": 1,
            "feed_forward_length": [88, 88, 88],
            "attention.head_count_kv": [2, 2, 2],
        },
    ),
    "qwen3_moe": ("qwen3_moe", "qwen3moe", _EXPERTS | {"expert_feed_forward_length": 40}),
    "olmoe": ("olmoe, GQA 1", "olmoe", _EXPERTS),
    "gemma": ("gemma", "gemma", {}),
    "gemma2": (
        "gemma2",
        "gemma2",
        {
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "attention.sliding_window": WINDOW,
        },
    ),
    "gemma3_text": ("gemma3_text, seven layers", "gemma3", {"attention.sliding_window": WINDOW}),
    "gemma3_text, all layers slide": (
        "gemma3_text",
        "gemma3",
        {"attention.sliding_window": WINDOW, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "gemma3_text, no window": ("gemma3_text, seven layers", "gemma3", {}),
    **gemma_4_models.GGUF,
    **ssm_models.GGUF,
    "phi3": ("phi3", "phi3", {"rope.scaling.attn_factor": 1.25, "rope.scaling.original_context_length": 16}),
    "phi3, partial": ("phi3, partial", "phi3", {"rope.dimension_count": 24, "attention.sliding_window": 64}),
    "olmo": (
        "transformers, olmo",
        "olmo",
        _LAYER_NORM | {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 0.5},
    ),
    "olmo2": ("olmo2, square", "olmo2", {}),
    "olmo3": (
        "olmo3, square",
        "olmo2",
        {
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": [True, False, True, True, False],
            "rope.freq_base_swa": 500000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_attn_factor": 1.1386,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
        },
    ),
    "smollm3": ("smollm3", "smollm3", {}),
    "granite": (
        "granite",
        "granite",
        {"attention.scale": 0.05, "embedding_scale": 3.0, "residual_scale": 0.3, "logit_scale": 4.0},
    ),
    # Granite 4 is written with keys of what it does not have.
    "granite, no positions": (
        "granite",
        "granite",
        {
            "attention.scale": 0.05,
            "embedding_scale": 3.0,
            "residual_scale": 0.3,
            "logit_scale": 4.0,
            "attention.head_count_kv": [2, 2],
            "expert_count": 0,
            "expert_used_count": 0,
            "expert_shared_feed_forward_length": 88,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 256,
            "rope.scaling.finetuned": False,
        },
    ),
    "cohere": ("cohere", "command-r", _LAYER_NORM | {"logit_scale": 0.25}),
    "starcoder2": ("starcoder2", "starcoder2", _LAYER_NORM),
    "stablelm": (
        "stablelm",
        "stablelm",
        _LAYER_NORM | {"rope.dimension_count": 8, "use_parallel_residual": False},
    ),
    "stablelm, parallel": (
        "stablelm, parallel",
        "stablelm",
        _LAYER_NORM | {"rope.dimension_count": 16, "use_parallel_residual": True},
    ),
    "internlm2": ("internlm2", "internlm2", {}),
    "exaone4": ("exaone4, square", "exaone4", {}),
    "glm": ("glm", "chatglm", {"rope.dimension_count": 16}),
    "glm, joined": ("glm", "chatglm", {"rope.dimension_count": 16}),
    "glm4": ("glm4", "glm4", {"rope.dimension_count": 16}),
    "seed_oss": ("seed_oss", "seed_oss", {}),
    "ernie4_5": ("ernie4_5, no biases", "ernie4_5", {}),
    "ernie4_5_moe": (
        "ernie4_5_moe, first layer",
        "ernie4_5-moe",
        {
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 40,
            "expert_shared_count": 2,
            "expert_shared_feed_forward_length": 80,
            "leading_dense_block_count": 1,
            "interleave_moe_layer_step": 1,
        },
    ),
    "minicpm": (
        "minicpm",
        "minicpm",
        {"embedding_scale": 12.0, "residual_scale": 1.4 / 2**0.5, "logit_scale": 128 / 24},
    ),
    "exaone": ("exaone", "exaone", {"attention.layer_norm_rms_epsilon": 1e-4}),
    "nemotron": ("nemotron", "nemotron", _LAYER_NORM | {"rope.dimension_count": 16}),
    "cohere2": (
        "cohere2",
        "cohere2",
        _LAYER_NORM | {"logit_scale": 0.25, "attention.sliding_window": WINDOW, "rope.scaling.type": "none"},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        "qwen2moe",
        _EXPERTS | {"expert_feed_forward_length": 40, "expert_shared_feed_forward_length": 72},
    ),
    "granitemoe": (
        "granitemoe",
        "granitemoe",
        _EXPERTS | {"attention.scale": 0.05, "embedding_scale": 3.0, "residual_scale": 0.3, "logit_scale": 4.0},
    ),
    "apertus": ("apertus", "apertus", {}),
    "falcon": (
        "transformers, falcon",
        "falcon",
        {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": 2},
    ),
    "gpt2": ("gpt2", "gpt2", _LAYER_NORM),
    "gpt_bigcode": ("gpt_bigcode", "starcoder", _LAYER_NORM | {"attention.head_count_kv": 1}),
    "granitemoeshared": (
        "transformers, granitemoeshared",
        "granitemoe",
        _EXPERTS
        | {
            "attention.scale": 0.05,
            "embedding_scale": 3.0,
            "residual_scale": 0.3,
            "logit_scale": 4.0,
            "expert_shared_feed_forward_length": 48,
        },
    ),
    "glm4_moe": (
        "glm4_moe, no qk norm",
        "glm4moe",
        GROUPED | {"rope.dimension_count": 16, "expert_gating_func": 2, "leading_dense_block_count": 0},
    ),
    "dots1": (
        "dots1",
        "dots1",
        GROUPED
        | {"expert_gating_func": 2, "leading_dense_block_count": 1}
        | {"expert_group_count": 4, "expert_group_used_count": 2},
    ),
    **latent_gguf.cases(GROUPED),
    "minimax_m2": (
        "minimax_m2",
        "minimax-m2",
        {
            "expert_count": 6,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
            "rope.dimension_count": 16,
            "expert_gating_func": 2,
        },
    ),
    "minimax_m3_vl_text": ("minimax_m3_vl_text", "minimax-m3", indexer_gguf.MINIMAX_M3),
    # The base says what alpha does.
    "hunyuan_v1_dense": ("hunyuan_v1_dense", "hunyuan-dense", {"rope.freq_base": 5000.0 * 50.0 ** (32 / 30)}),
    "hunyuan_v1_moe": (
        "hunyuan_v1_moe",
        "hunyuan-moe",
        {
            "rope.freq_base": 5000.0 * 50.0 ** (32 / 30),
            "rope.scaling.type": "none",
            "rope.scaling.factor": 1.0,
            "expert_count": 3,
            "expert_used_count": 2,
            "expert_feed_forward_length": 88,
            "expert_shared_feed_forward_length": 88,
            "expert_shared_count": 1,
        },
    ),
    # llama.cpp has chunks of 8192 tokens, whatever a file says.
    "llama4_text": (
        "llama4_text",
        "llama4",
        {
            "expert_count": 5,
            "expert_used_count": 1,
            "expert_feed_forward_length": 40,
            "feed_forward_length": 88,
            "interleave_moe_layer_step": 2,
        },
    ),
    "gpt_neox": (
        "transformers, gpt_neox",
        "gptneox",
        {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": 8, "use_parallel_residual": True},
    ),
    "phi": ("phi", "phi2", _LAYER_NORM | {"rope.dimension_count": 16}),
    "afmoe": (
        "afmoe",
        "afmoe",
        _EXPERTS
        | {
            "expert_feed_forward_length": 40,
            "expert_shared_count": 2,
            "leading_dense_block_count": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "attention.sliding_window": WINDOW,
        },
    ),
    "exaone_moe": (
        "exaone_moe",
        "exaone-moe",
        GROUPED
        | {
            "expert_shared_feed_forward_length": 80,
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
            "attention.sliding_window": WINDOW,
        },
    ),
    "laguna": (
        "laguna",
        "laguna",
        _EXPERTS
        | {
            "attention.head_count": [4, 6, 6],
            "expert_feed_forward_length": 40,
            "attention.sliding_window": WINDOW,
            "expert_shared_feed_forward_length": 56,
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "leading_dense_block_count": 1,
            "rope.dimension_count": 16,
            "rope.dimension_count_swa": 32,
            "rope.freq_base": 5000.0,
            "rope.freq_base_swa": 100.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
        },
    ),
    **ALIBI,
    **mimo_models.GGUF,
    **(LFM2 | QWEN_DELTA | KIMI),
    **step_models.GGUF,
    **dbrx_models.GGUF,
    "gpt_oss": (
        "gpt_oss",
        "gpt-oss",
        _EXPERTS
        | {
            "expert_feed_forward_length": 64,
            "attention.sliding_window": WINDOW,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
        },
    ),
}
"""Cases by name: the case of family_models with the tensors (`transformers, ` and a family: that of config_effects),
the architecture, and further metadata."""


def write_gguf(case: str, folder: Path, joined: bool = False) -> Path:
    """The GGUF file of a case, f32.

    Args:
        case: one of CASES.
        folder: where it is written.
        joined: whether queries, keys and values are one tensor, as llama.cpp's converter can write them.
    """
    source, architecture, extra = CASES[case]
    config, hf = _folder(source, folder / "hf")
    path = folder / f"{architecture}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata_of(config, extra).items():
        add_key(writer, f"{architecture}.{key}", value)
    writer.add_tokenizer_model("no_vocab")
    tensors = tensors_of(hf, config)
    for name, array in (gguf_changes.joined(tensors) if joined or case == "glm, joined" else tensors).items():
        if name.startswith("xielu."):
            writer.add_array(name, array.tolist())
            continue
        writer.add_tensor(name, ssm_models.as_in_gguf(name, array, extra))
    if case in ("phi3", "minicpm3"):
        for kind, factors in (("long", "long_factor"), ("short", "short_factor")):
            values = np.array(config["rope_scaling"][factors], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", values)
    if case == "apertus":
        for name, value in (("beta", 0.5), ("eps", -1e-6)):
            writer.add_array(f"xielu.{name}", [value] * config["num_hidden_layers"])
    if case == "glm4, a guessing layer":
        for name, array in gguf_changes.guessing_layer(tensors).items():
            writer.add_tensor(name, array)
    if "attention.indexer.top_k" in extra:
        for name, array in indexer_gguf.indexers(extra, config).items():
            writer.add_tensor(name, array)
    if case.startswith("gemma4"):
        writer.add_tensor("rope_freqs.weight", np.array(gemma_4_models.DIVISORS, np.float32))
    if case == "llama, divisors":
        writer.add_tensor("rope_freqs.weight", np.linspace(1.0, 5.0, 16, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _folder(source: str, folder: Path) -> tuple[dict[str, Any], Path]:
    """The folder with a case's tensors, and its config."""
    of_transformers = source.partition("transformers, ")[2]
    if not of_transformers:
        config = config_of(source)
        return config, save_folder(build_model(config), config, folder)
    config = config_effects.base_config(of_transformers, "rope_theta")
    numbers = config_effects.weights(of_transformers, config_effects.load_recorded()[of_transformers].shapes)
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), {name: mx.array(held) for name, held in numbers.items()})
    (folder / "config.json").write_text(json.dumps(config))
    return config, folder


_WIDTHS = ("n_inner", "ffn_hidden_size", "intermediate_size")


def metadata_of(config: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """A config's properties as GGUF says them, and more."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    base = {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": next(config[key] for key in _WIDTHS if key in config),
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config.get("num_key_value_heads") or config["num_attention_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
    }
    if not isinstance(config.get("rope_theta"), list):  # which says it of each layer
        base["rope.freq_base"] = float(config.get("rope_theta", 10000.0))
    if "rms_norm_eps" in config:
        base["attention.layer_norm_rms_epsilon"] = config["rms_norm_eps"]
    return {key: value for key, value in (base | extra).items() if value is not None}


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, value)


def tensors_of(folder: Path, config: dict[str, Any], options: ImportOptions = EXACT) -> dict[str, Any]:
    """Every tensor in the GGUF file's own layout: the rows that recipes select, put back where they come from."""
    spec, weights = import_model(folder, options)
    specs = [spec, spec.model_copy(update={"output": "guesses"})][: 1 + options.mtp]
    every = [weight for own in specs for weight in source_weights(own).weights]
    mapped = MappedWeights(require_head(open_weights(weights)) if options.mtp else open_weights(weights))
    counts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    said = config | config.get("ffn_config", {})
    experts = next((said[key] for key in counts if key in said), 0)
    arrays: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    parts = {part.name: part for weight in every for part in weight.parts}.values()
    attention = spec.model.attention
    heads = 1 if attention is None else attention.num_heads
    for part in parts:
        rows = heads * part.shape[1] if part.gguf[0].is_transposed else part.shape[0]
        sizes[part.gguf[0].tensor] = sizes.get(part.gguf[0].tensor, 0) + rows
    for part in parts:
        numbers = open_tensor(mapped, part).numbers(0, part.shape[0])
        recipe = part.gguf[0]
        if recipe.is_transposed and recipe.matrix_rows:
            latent_gguf.put(arrays, recipe, numbers, heads, sizes[recipe.tensor])
            continue
        array = arrays.setdefault(recipe.tensor, np.zeros((sizes[recipe.tensor], numbers.shape[1]), np.float32))
        array[slice(None) if recipe.rows is None else selected(recipe.rows, 0, len(numbers))] = numbers
    norm, head_dim = (None, 1) if attention is None else (attention.qk_norm, attention.head_dim)
    of_heads = norm is not None and norm.scope == "heads"
    shaped = {name: _shaped(name, array, experts, head_dim, of_heads) for name, array in arrays.items()}
    channels = [block.conv_row[0] for block in spec.model.recurrents if block is not None and block.conv_row]
    shaped |= {name: a.reshape(channels[0], -1) for name, a in shaped.items() if name.endswith("shortconv.conv.weight")}
    return latent_gguf.by_head(shaped, heads)


def _shaped(name: str, array: Any, experts: int, head_dim: int, norm_of_heads: bool) -> Any:
    if "exps" in name:
        return array.reshape(experts, -1, *array.shape[1:] if array.shape[1] > 1 else ())
    if array.shape[1] > 1:
        return array
    whole = array.ravel()
    is_of_heads = norm_of_heads and name.endswith(("attn_q_norm.weight", "attn_k_norm.weight"))
    return whole.reshape(-1, head_dim) if is_of_heads else whole
