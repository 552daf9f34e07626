"""A spec from Hugging Face's config.json and the tensors of the safetensors files beside it."""

from collections.abc import Mapping
from typing import Any

from mlxr.compiler.importers.evaluate import Evaluation
from mlxr.compiler.importers.facts import Facts, find_architecture
from mlxr.compiler.importers.imported import DEFAULTS, ImportOptions, choose_context, imported_spec
from mlxr.compiler.importers.quantisation import check_quantisation, quantised_tensors
from mlxr.compiler.importers.rope_section import ConfigRope
from mlxr.compiler.importers.tensors import TensorFact, Tensors
from mlxr.compiler.spec.model import ModelSpec

_CLASS_ENDING = "ForCausalLM"


def spec_from_config(
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorFact],
    name: str,
    source: str,
    options: ImportOptions = DEFAULTS,
) -> ModelSpec:
    """The spec of the model in a Hugging Face or mlx-lm folder.

    Args:
        config: the content of config.json.
        tensors: of the safetensors files, by their names there.
        name: of the spec, made valid here.
        source: what error messages call config.json.
        options: what the files leave open.

    Raises:
        SpecError: the architecture, a key, a value, the quantisation or a tensor's type is not supported; the message
            names it.
    """
    architecture = find_architecture(source, "model_type", config, "config")
    facts = Facts(source, config, architecture.rules)
    facts.get("model_type")
    _check_task(facts)
    check_quantisation(facts)
    layers = facts.integer("num_hidden_layers")
    held = Tensors(source, quantised_tensors(facts, tensors), architecture.family, "safetensors", layers)
    if facts.integer("vocab_size", held.vocab_size) != held.vocab_size:
        raise facts.refuse("vocab_size", facts.get("vocab_size"), f"the rows of the embedding table, {held.vocab_size}")
    model = Evaluation(facts, held, ConfigRope(facts)).model()
    tied = model.get("tie_embeddings", False)
    if not tied and not held.has("output"):
        raise facts.refuse("tie_word_embeddings", False, "true: there is no output projection among the tensors")
    model |= {"vocab_size": held.vocab_size, "tensor_names": architecture.family}
    own = model.get("context")
    if not isinstance(own, int):
        raise facts.missing("max_position_embeddings")
    model["context"] = choose_context(source, own, options)
    facts.check_all_read()
    return imported_spec(source, name, model, held.formats(tied), options)


def _check_task(facts: Facts) -> None:
    classes = facts.get("architectures")
    if classes is None:
        return
    if not isinstance(classes, list) or not all(isinstance(c, str) and c.endswith(_CLASS_ENDING) for c in classes):
        raise facts.refuse("architectures", classes, f"a language model, [...{_CLASS_ENDING}]")
