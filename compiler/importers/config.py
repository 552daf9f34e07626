"""A spec from Hugging Face's config.json and the tensors of the safetensors files beside it."""

from collections.abc import Callable, Mapping
from typing import Any

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.eagle import is_head
from mlxr.compiler.importers.encoders import is_encoder, of_encoder
from mlxr.compiler.importers.evaluate import Evaluation
from mlxr.compiler.importers.facts import Facts
from mlxr.compiler.importers.imported import DEFAULTS, ImportOptions, choose_context, imported_spec
from mlxr.compiler.importers.quantisation import check_quantisation, quantised_tensors
from mlxr.compiler.importers.rope_section import ConfigRope
from mlxr.compiler.importers.tensors import TensorFact, Tensors
from mlxr.compiler.importers.text_model import find_text_model
from mlxr.compiler.spec.fields import Output
from mlxr.compiler.spec.model import ModelSpec

_CLASS_ENDING, _WRAPPER_ENDING = "ForCausalLM", "ForConditionalGeneration"


def spec_from_config(
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorFact],
    name: str,
    source: str,
    options: ImportOptions = DEFAULTS,
    are_same: Callable[[str, str], bool] = lambda first, second: False,
) -> ModelSpec:
    """The spec of the model in a Hugging Face or mlx-lm folder.

    Args:
        config: the content of config.json.
        tensors: the tensors of the safetensors files, by their names there.
        name: the name to give the spec; characters that specs do not allow are replaced.
        source: what error messages call config.json.
        options: choices that the files leave open.
        are_same: whether two tensors, by their names in the files, hold the same numbers.

    Raises:
        SpecError: the architecture, a key, a value, the quantisation or a tensor's type is not supported; the message
            names it.
    """
    _check_whole(source, config, tensors)
    source, config, architecture, wrapper = find_text_model(source, config)
    facts = Facts(source, config, architecture.rules, accepted=options.accepted_keys)
    facts.get("model_type")
    if is_encoder(architecture.rules):
        options = of_encoder(options)
    _check_task(facts, options.output, wrapper)
    check_quantisation(facts)
    evaluation = Evaluation(facts, ConfigRope(facts))
    quantised = quantised_tensors(facts, tensors)
    num_layers = evaluation.num_layers
    placed = Tensors(source, quantised, architecture.family, "safetensors", num_layers + options.mtp)
    rows = placed.vocab_size
    if facts.integer("vocab_size", rows) != rows:
        raise facts.refuse("vocab_size", facts.get("vocab_size"), f"the rows of the embedding table, {rows}")
    model = evaluation.model(placed)
    tied = model.get("tie_embeddings", False)
    if options.output == "logits":
        _check_output(facts, placed, tied, are_same)
    model |= {"vocab_size": rows, "tensor_names": architecture.family} | placed.head(num_layers)
    own = model.get("context")
    if not isinstance(own, int):
        raise facts.missing("max_position_embeddings")
    model["context"] = choose_context(source, own, options, architecture.rules.context_ends)
    window = config.get("sliding_window")
    if isinstance(window, int) and window >= own:
        facts.get("sliding_window")  # hides nothing, whether the family's code has windows or not
    facts.check_all_read()
    return imported_spec(source, name, model, placed.formats(tied or options.output == "hidden"), options)


def _check_whole(source: str, config: Mapping[str, Any], tensors: Mapping[str, TensorFact]) -> None:
    """Refuses heads that draft for another model: their configs call them what that model is called."""
    if is_head(config) or "fc.weight" in tensors:
        raise SpecError(
            f"{source}: this is not a model but a head, such as EAGLE's, that reads what another model computes: name "
            "that model, and give it this head with --draft"
        )


def _check_task(facts: Facts, output: Output, wrapper: str | None) -> None:
    """Refuses classes of models for other tasks. Without its head, a language model is a class of its own."""
    classes = facts.get("architectures")
    if classes is None:
        return
    ending = _CLASS_ENDING if wrapper is None else _WRAPPER_ENDING
    headless = f"{wrapper or facts.get('model_type')}model".replace("_", "").lower() if output == "hidden" else None
    if not isinstance(classes, list) or not all(
        isinstance(c, str) and (c.endswith(ending) or c in facts.rules.classes or c.lower() == headless)
        for c in classes
    ):
        raise facts.refuse("architectures", classes, f"a language model, [...{ending}]")


def _check_output(facts: Facts, placed: Tensors, tied: bool, are_same: Callable[[str, str], bool]) -> None:
    """Refuses a file whose output projection contradicts tie_word_embeddings: nobody knows which is right."""
    output, embedding = placed.name("output"), placed.name("embedding")
    if not tied and output is None:
        raise facts.refuse("tie_word_embeddings", False, "true: there is no output projection among the tensors")
    if not tied or output is None or embedding is None or are_same(output, embedding):
        return
    said = "is true" if facts.get("tie_word_embeddings") else "says nothing, which means true"
    raise SpecError(
        f"{facts.source}: tie_word_embeddings {said}, but {output} is among the tensors and is another matrix than "
        f"{embedding}: transformers would compute with {output}, mlx-lm with {embedding}. Set tie_word_embeddings to "
        f"false to use {output}, or remove that tensor from the file"
    )
