"""A spec from Hugging Face's config.json and the tensors of the safetensors files beside it."""

from collections.abc import Mapping
from typing import Any

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.facts import Facts, find_architecture
from mlxr.compiler.importers.imported import DEFAULTS, Imported, ImportOptions, choose_context, imported_spec
from mlxr.compiler.importers.rules import load_rules
from mlxr.compiler.importers.tensors import TensorFact, Tensors

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_CLASS_ENDING = "ForCausalLM"


def spec_from_config(
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorFact],
    name: str,
    source: str,
    options: ImportOptions = DEFAULTS,
) -> Imported:
    """The spec of the model in a Hugging Face folder.

    Args:
        config: the content of config.json.
        tensors: of the safetensors files, by their names there.
        name: of the spec, made valid here.
        source: what error messages call config.json.
        options: what the files leave open.

    Raises:
        SpecError: the architecture, a key, a value or a tensor's type is not supported; the message names it.
    """
    rules = load_rules("config")
    facts = Facts(source, config, rules)
    kind = facts.get("model_type")
    family = find_architecture(source, "model_type", kind, rules)
    _check_task(facts)
    _check_quantisation(facts)
    held = Tensors(source, tensors, family, "safetensors", rules)
    heads, hidden = facts.integer("num_attention_heads"), facts.integer("hidden_size")
    if facts.integer("vocab_size", held.vocab_size) != held.vocab_size:
        raise facts.refuse("vocab_size", facts.get("vocab_size"), f"the rows of the embedding table, {held.vocab_size}")
    biases = _biases(facts, held)
    tied = _tied(facts, held)
    model = {
        "vocab_size": held.vocab_size,
        "hidden_size": hidden,
        "num_layers": facts.integer("num_hidden_layers"),
        "context": choose_context(source, facts.integer("max_position_embeddings"), options),
        "norm": {"kind": "rms", "eps": facts.number("rms_norm_eps", 1e-6)},
        "rope": _rope(facts),
        "attention": {
            "num_heads": heads,
            "num_kv_heads": facts.integer("num_key_value_heads", heads),
            "head_dim": facts.integer("head_dim", hidden // heads if heads > 0 else 0),
            "qkv_bias": biases["qkv_bias"],
            "output_bias": biases["output_bias"],
            "sliding_window": _window(facts, kind),
        },
        "mlp": {
            "intermediate_size": facts.integer("intermediate_size"),
            "activation": _ACTIVATIONS[facts.choice("hidden_act", tuple(_ACTIVATIONS), "silu")],
            "bias": biases["mlp_bias"],
        },
        "tie_embeddings": tied,
        "tensor_names": family,
    }
    facts.check_all_read()
    return Imported(imported_spec(source, name, model, held.formats(tied), options), held.notes)


def _check_task(facts: Facts) -> None:
    classes = facts.get("architectures")
    if classes is None:
        return
    if not isinstance(classes, list) or not all(isinstance(c, str) and c.endswith(_CLASS_ENDING) for c in classes):
        raise facts.refuse("architectures", classes, f"a language model, [...{_CLASS_ENDING}]")


def _check_quantisation(facts: Facts) -> None:
    for key in ("quantization", "quantization_config"):
        if facts.get(key) is not None:
            raise SpecError(
                f"{facts.source}: {key}: folders of quantised weights are not supported; "
                "use the model's GGUF file, or its f16 or bf16 folder"
            )


def _biases(facts: Facts, held: Tensors) -> dict[str, bool]:
    """What the tensors have; a config that says otherwise is of another model."""
    found = held.biases()
    for key, name in (("attention_bias", "qkv_bias"), ("mlp_bias", "mlp_bias")):
        if facts.flag(key, found[name]) != found[name]:
            there = "are" if found[name] else "are none"
            raise facts.refuse(key, facts.get(key), f"{str(found[name]).lower()}: among the tensors there {there}")
    return found


def _tied(facts: Facts, held: Tensors) -> bool:
    tied = facts.flag("tie_word_embeddings", not held.has_output)
    if not tied and not held.has_output:
        raise facts.refuse("tie_word_embeddings", False, "true: there is no lm_head.weight among the tensors")
    return tied


def _window(facts: Facts, kind: object) -> int | None:
    """Tokens that a query may see. Llama's own code has no window, so a Llama that asks for one is something else."""
    if facts.get("sliding_window") is None:
        return None
    window = facts.integer("sliding_window")
    if kind != "mistral":
        raise facts.refuse("sliding_window", window, f"none with model_type {kind}")
    return window


def _rope(facts: Facts) -> dict[str, Any]:
    """Both spellings: rope_theta beside rope_scaling, and rope_parameters for both (transformers 5)."""
    new, old = facts.get("rope_parameters"), facts.get("rope_scaling")
    said = new or old or {}
    if not isinstance(said, dict):
        raise facts.refuse("rope_scaling", said, "a section")
    section = Facts(f"{facts.source}: RoPE", said, load_rules("config").model_copy(update={"harmless": ()}))
    theta = section.number("rope_theta", facts.number("rope_theta", 10000.0))
    kinds = [kind for kind in (section.get("rope_type"), section.get("type")) if kind is not None]
    kind = kinds[0] if kinds else "default"
    rope: dict[str, Any] = {"theta": theta}
    if kind == "linear":
        rope["scaling"] = {"kind": "linear", "factor": section.number("factor")}
    elif kind == "llama3":
        rope["scaling"] = {
            "kind": "llama3",
            "factor": section.number("factor"),
            "low_freq_factor": section.number("low_freq_factor"),
            "high_freq_factor": section.number("high_freq_factor"),
            "original_context": section.integer("original_max_position_embeddings"),
        }
    elif kind != "default":
        raise section.refuse("rope_type", kind, "default, linear or llama3")
    section.check_all_read()
    return rope
