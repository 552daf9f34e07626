"""A spec from the metadata and tensors of a GGUF file.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md for the keys; an absent key has llama.cpp's default.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats.file_keys import ARCHITECTURE
from mlxr.compiler.importers.encoders import is_encoder, of_encoder
from mlxr.compiler.importers.evaluate import Evaluation
from mlxr.compiler.importers.facts import Facts, find_architecture
from mlxr.compiler.importers.gguf_rope import FACTOR_TENSORS, GgufRope
from mlxr.compiler.importers.imported import DEFAULTS, ImportOptions, choose_context, imported_spec
from mlxr.compiler.importers.tensors import TensorFact, Tensors
from mlxr.compiler.spec.family import EAGLE_FAMILY
from mlxr.compiler.spec.model import ModelSpec

__all__ = ["FACTOR_TENSORS", "spec_from_gguf"]


def spec_from_gguf(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorFact],
    name: str,
    source: str,
    options: ImportOptions = DEFAULTS,
    factors: Mapping[str, Sequence[float]] | None = None,
) -> ModelSpec:
    """The spec of the model in a GGUF file.

    Args:
        metadata: all metadata of the file, as plain data.
        tensors: the tensors by their names in the file.
        name: the name to give the spec; characters that specs do not allow are replaced.
        source: what error messages call the file.
        options: choices that the file leaves open.
        factors: the numbers of those of FACTOR_TENSORS that the file has.

    Raises:
        SpecError: the architecture, a key, a value or a tensor's type is not supported; the message names it.
    """
    if metadata.get(ARCHITECTURE) == EAGLE_FAMILY:
        raise SpecError(
            f"{source}: this is not a model but a head, EAGLE's, that reads what another model computes: name that "
            "model, and give it this head with --draft"
        )
    architecture = find_architecture(source, ARCHITECTURE, metadata, "gguf")
    if is_encoder(architecture.rules):
        options = of_encoder(options)
    facts = Facts(source, metadata, architecture.rules, f"{architecture.name}.", options.accepted_keys)
    placed = Tensors(source, tensors, architecture.family, "gguf", facts.integer("block_count"))
    rows = placed.vocab_size
    if facts.integer("vocab_size", rows) != rows:
        raise facts.refuse("vocab_size", facts.get("vocab_size"), f"the rows of the embedding table, {rows}")
    evaluation = Evaluation(facts, GgufRope(facts, factors or {}))
    model = evaluation.model(placed)
    attention = model.get("attention", {})
    if attention.get("latent") is not None:  # which says itself how long values are
        attention.pop("v_dim", None)
    own = model.get("context")
    if not isinstance(own, int):
        raise facts.missing("context_length")
    tied = not placed.has("output")
    model |= {
        "vocab_size": rows,
        "tensor_names": architecture.family,
        "tie_embeddings": tied,
        "context": choose_context(source, own, options, architecture.rules.context_ends),
        **placed.head(evaluation.num_layers),
    }
    facts.check_all_read()
    return imported_spec(source, name, model, placed.formats(tied or options.output == "hidden"), options)
