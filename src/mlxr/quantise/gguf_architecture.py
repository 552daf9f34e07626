"""What GGUF metadata say of a model's architecture, made of its spec, as llama.cpp's converter writes them.

`check_said` imports them again: what comes back must be the model. So a model is refused by name if it has a property
that these keys do not say.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlxr.compiler.build.rope import rope_frequencies
from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.gguf import spec_from_gguf
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.model import Model, ModelSpec
from mlxr.compiler.spec.rope import Llama3Scaling, LongRopeScaling, Rope, YarnScaling
from mlxr.loading.compare_spec import differences
from mlxr.quantise.block_quantiser import Floats

Facts = dict[str, "Fact"]


class Fact(NamedTuple):
    """A value of metadata: `kind` is that of numbers, as for `gguf_output.entry`; empty: it is text."""

    value: Any
    kind: str = ""


ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "olmo2": "olmo2",
    "smollm3": "smollm3",
    "granite": "granite",
    "phi3": "phi3",
    "starcoder2": "starcoder2",
    "stablelm": "stablelm",
    "glm4": "glm4",
    "seed_oss": "seed_oss",
    "exaone4": "exaone4",
    "exaone": "exaone",
    "nemotron": "nemotron",
    "phi": "phi2",
    "gpt2": "gpt2",
}
"""GGUF's names of the families that can be converted."""
_SQUARE = ("olmo2", "exaone4")
"""Architectures of which llama.cpp takes only models whose heads together are as wide as the residual stream."""
_TRUE_SCALES = ("granite",)
"""Architectures whose files say factors that others imply."""


def architecture_facts(spec: ModelSpec, where: str) -> Facts:
    """What the metadata say of a spec's model.

    Raises:
        SpecError: its family cannot be converted.
    """
    model, family = spec.model, spec.model.tensor_names
    if family not in ARCHITECTURES:
        raise SpecError(
            f"{where}: the family {family} cannot be converted to GGUF here; these can: "
            f"{', '.join(sorted(ARCHITECTURES))}. Use llama.cpp's convert_hf_to_gguf.py"
        )
    name = ARCHITECTURES[family]
    turned = [each for each in model.layers if each.rope is not None] or model.layers
    layer = next((each for each in turned if each.own_attention.sliding_window is None), turned[0])
    attention, mlp = layer.own_attention, layer.mlp
    assert mlp is not None, f"layers of {family} have an MLP"
    if name in _SQUARE and attention.num_heads * attention.head_dim != model.hidden_size:
        raise SpecError(f"{where}: llama.cpp reads no {name} whose heads together are not as wide as hidden_size")
    norm = "layer_norm_rms_epsilon" if model.norm.kind == "rms" else "layer_norm_epsilon"
    facts = {
        "vocab_size": Fact(model.vocab_size, "u32"),
        "context_length": Fact(model.context, "u32"),
        "embedding_length": Fact(model.hidden_size, "u32"),
        "block_count": Fact(model.num_layers, "u32"),
        "feed_forward_length": Fact(mlp.intermediate_size, "u32"),
        "attention.head_count": Fact(attention.num_heads, "u32"),
        "attention.head_count_kv": Fact(attention.num_kv_heads, "u32"),
        "attention.key_length": Fact(attention.head_dim, "u32"),
        "attention.value_length": Fact(attention.result_dim, "u32"),
        f"attention.{norm}": Fact(model.norm.eps, "f32"),
    }
    if layer.rope is not None:
        facts |= _rope(layer.rope, layer.rope.rotary_dim(attention.head_dim), model)
    windows = [each.own_attention.sliding_window for each in model.layers]
    if any(windows):
        facts["attention.sliding_window"] = Fact(max(window or 0 for window in windows), "u32")
    if attention.softcap is not None:
        facts["attn_logit_softcapping"] = Fact(attention.softcap, "f32")
    if model.logit_softcap is not None:
        facts["final_logit_softcapping"] = Fact(model.logit_softcap, "f32")
    facts |= _experts(model) | _special(name, model)
    own = {f"{name}.{key}": fact for key, fact in facts.items()}
    return {"general.architecture": Fact(name), "general.type": Fact("model"), "general.name": Fact(spec.name)} | own


def _rope(rope: Rope, rotary_dim: int, model: Model) -> Facts:
    facts = {"rope.freq_base": Fact(rope.theta, "f32"), "rope.dimension_count": Fact(rotary_dim, "u32")}
    scaling = rope.scaling
    if scaling.kind in ("linear", "yarn"):
        facts |= {"rope.scaling.type": Fact(scaling.kind), "rope.scaling.factor": Fact(scaling.factor, "f32")}
    if isinstance(scaling, YarnScaling):
        facts["rope.scaling.original_context_length"] = Fact(scaling.original_context, "u32")
        facts["rope.scaling.yarn_beta_fast"] = Fact(scaling.beta_fast, "f32")
        facts["rope.scaling.yarn_beta_slow"] = Fact(scaling.beta_slow, "f32")
    if isinstance(scaling, LongRopeScaling):
        facts["rope.scaling.original_context_length"] = Fact(scaling.original_context, "u32")
        stretch = model.context / scaling.original_context
        usual = math.sqrt(1 + math.log(stretch) / math.log(scaling.original_context)) if stretch > 1 else 1.0
        facts["rope.scaling.attn_factor"] = Fact(scaling.attention_factor or usual, "f32")
    return facts


def _experts(model: Model) -> Facts:
    mlp = model.mlp
    if mlp is None or mlp.experts is None:
        return {}
    width = Fact(mlp.intermediate_size, "u32")
    facts = {
        "expert_count": Fact(mlp.experts.count, "u32"),
        "expert_used_count": Fact(mlp.experts.per_token, "u32"),
    }
    return facts if model.tensor_names == "mixtral" else facts | {"expert_feed_forward_length": width}


def _special(name: str, model: Model) -> Facts:
    """What single architectures say."""
    facts: Facts = {}
    attention = model.layers[0].own_attention
    if name in _TRUE_SCALES:
        facts["attention.scale"] = Fact(attention.scale or attention.head_dim**-0.5, "f32")
        facts["embedding_scale"] = Fact(model.embedding_scale, "f32")
        facts["residual_scale"] = Fact(model.residual_scale, "f32")
        facts["logit_scale"] = Fact(1 / model.logit_scale, "f32")
    sliding = next((each.rope for each in model.layers if each.own_attention.sliding_window and each.rope), None)
    if name == "gemma3" and sliding is not None:
        facts["rope.freq_base_swa"] = Fact(sliding.theta, "f32")
    if name == "stablelm":
        facts["use_parallel_residual"] = Fact(model.parallel_blocks, "bool")
    return facts


def rope_tensors(model: Model) -> dict[str, Floats]:
    """Tensors in which files have the divisors of frequencies."""
    turned = [each for each in model.layers if each.rope is not None]
    layer = next((each for each in turned if each.own_attention.sliding_window is None), turned[0] if turned else None)
    if layer is None or layer.rope is None:
        return {}
    scaling = layer.rope.scaling
    if isinstance(scaling, Llama3Scaling):
        plain = rope_frequencies(Rope(theta=layer.rope.theta), layer.rotary_dim)
        scaled = rope_frequencies(layer.rope, layer.rotary_dim)
        return {"rope_freqs.weight": np.array([a / b for a, b in zip(plain, scaled, strict=True)], np.float32)}
    if isinstance(scaling, LongRopeScaling):
        return {
            "rope_factors_long.weight": np.array(scaling.long_factors, np.float32),
            "rope_factors_short.weight": np.array(scaling.short_factors, np.float32),
        }
    return {}


def check_said(
    spec: ModelSpec,
    facts: Mapping[str, Fact],
    tensors: Mapping[str, TensorFact],
    factors: Mapping[str, Sequence[float]],
) -> None:
    """Checks that metadata and tensors say what the spec does.

    Raises:
        SpecError: they do not; the message names every difference.
    """
    metadata = {key: _stored(fact) for key, fact in facts.items()}
    options = ImportOptions(spec.model.context, force_context=True)
    back = spec_from_gguf(metadata, tensors, spec.name, f"{spec.name} as GGUF", options, factors)
    if unlike := list(differences(spec.model, back.model)):
        raise SpecError(
            f"{spec.name}: cannot be converted to GGUF here, for the keys that are written would say that "
            f"{'; '.join(unlike)}. Use llama.cpp's convert_hf_to_gguf.py"
        )


def _stored(fact: Fact) -> Any:
    return float(np.float32(fact.value)) if fact.kind == "f32" and not isinstance(fact.value, list) else fact.value
