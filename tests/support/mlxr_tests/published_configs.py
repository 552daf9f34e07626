"""config.json of published models, by `tests/data/published_configs.json`, and what the importer makes of them."""

import json
from collections.abc import Mapping
from typing import Any

from mlxr.compiler.importers.config import spec_from_config
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.importers.text_model import find_text_model
from mlxr.compiler.spec.family import load_family
from mlxr.compiler.spec.model import Model, ModelSpec
from mlxr_tests.storyteller import ROOT

Config = dict[str, Any]
PUBLISHED: dict[str, dict[str, Config]] = json.loads((ROOT / "tests" / "data" / "published_configs.json").read_text())
TIED = (
    *(
        "bloom",
        "cohere",
        "cohere2",
        "ernie4_5",
        "ernie4_5_moe",
        "falcon",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_bigcode",
    ),
    *("lfm2", "lfm2_moe", "mpt", "minicpm", "minicpm3", "starcoder2"),
)
"""Families whose configs leave tie_word_embeddings out where it is true."""
TENSORS = {
    "attention.q_bias": ("add_qkv_bias", "attention_bias", "use_bias", "use_qkv_bias"),
    "attention.q_norm": ("qk_layernorm", "use_qk_norm"),
    "mlp.up_bias": ("use_bias",),
}
"""Tensors by the keys that say that there are such."""


def config_of(name: str) -> Config:
    """The config of a model."""
    family = next(models for models in PUBLISHED.values() if name in models)
    config: Config = _whole(family["shared"] | family[name])
    return config


def _whole(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"repeat", "times"}:
        return value["repeat"] * value["times"]
    return {key: _whole(inner) for key, inner in value.items()}


def imported(config: Config) -> Model:
    """What the importer makes of it, beside the tensors from which it learns something."""
    return spec_of(config).model


def spec_of(config: Config) -> ModelSpec:
    """The same with everything else that is in a spec."""
    text = find_text_model("x", config)
    names, said = load_family(text.architecture.family).tensors, text.config
    rows = first(said, "vocab_size", "padded_vocab_size")
    tensors = {}
    for role in ("embedding", "output"):
        if role == "embedding" or not said.get("tie_word_embeddings", said["model_type"] in TIED):
            places = names.get(role)
            if places is None:  # encoders have no output
                continue
            width = first(said, "hidden_size", "n_embd", "n_embed", "d_model")
            tensors[places.safetensors[0].tensor] = TensorFact((rows, width), "BF16")
    for role, keys in TENSORS.items():
        places = names.get(f"layers.{{i}}.{role}")
        if places is not None and any(said.get(key) for key in keys):
            name = places.safetensors[0].tensor.replace("{i}", "0").replace("{e}", "0")
            tensors[name] = TensorFact((8,), "BF16")
    return spec_from_config(config, tensors, "x", "config.json")


def first(config: Mapping[str, Any], *keys: str) -> Any:
    """What a config says by the first of these keys that it has."""
    return next(config[key] for key in keys if key in config)
