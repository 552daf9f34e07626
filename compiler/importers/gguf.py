"""A spec from what a GGUF file says of itself.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md for the keys; where a key is absent, llama.cpp's
default holds.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.facts import Facts, find_architecture, shortest_f32
from mlxr.compiler.importers.imported import DEFAULTS, Imported, ImportOptions, choose_context, imported_spec
from mlxr.compiler.importers.rules import load_rules
from mlxr.compiler.importers.tensors import TensorFact, Tensors
from mlxr.compiler.rope import rope_frequencies
from mlxr.compiler.spec.model import Llama3Scaling, Rope

ROPE_FACTORS = "rope_freqs.weight"
"""The tensor of frequency divisors by which GGUF files have Llama 3's scaling."""


def spec_from_gguf(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorFact],
    name: str,
    source: str,
    options: ImportOptions = DEFAULTS,
    rope_factors: Sequence[float] | None = None,
) -> Imported:
    """The spec of the model in a GGUF file.

    Args:
        metadata: all of the file's, as plain data.
        tensors: by their names in the file.
        name: of the spec, made valid here.
        source: what error messages call the file.
        options: what the file leaves open.
        rope_factors: the numbers of the tensor ROPE_FACTORS, if the file has it.

    Raises:
        SpecError: the architecture, a key, a value or a tensor's type is not supported; the message names it.
    """
    rules = load_rules("gguf")
    architecture = metadata.get("general.architecture")
    family = find_architecture(source, "general.architecture", architecture, rules)
    facts = Facts(source, metadata, rules, prefix=f"{architecture}.")
    held = Tensors(source, tensors, family, "gguf", rules)
    heads = facts.integer("attention.head_count")
    hidden = facts.integer("embedding_length")
    head_dim = facts.integer("attention.key_length", hidden // heads if heads > 0 else 0)
    if facts.integer("attention.value_length", head_dim) != head_dim:
        raise facts.refuse("attention.value_length", facts.get("attention.value_length"), f"key_length, {head_dim}")
    if facts.integer("vocab_size", held.vocab_size) != held.vocab_size:
        raise facts.refuse("vocab_size", facts.get("vocab_size"), f"the rows of the embedding table, {held.vocab_size}")
    rotary = facts.integer("rope.dimension_count", head_dim)
    biases = held.biases()
    tied = not held.has_output
    model = {
        "vocab_size": held.vocab_size,
        "hidden_size": hidden,
        "num_layers": facts.integer("block_count"),
        "context": choose_context(source, facts.integer("context_length"), options),
        "norm": {"kind": "rms", "eps": shortest_f32(facts.number("attention.layer_norm_rms_epsilon"))},
        "rope": _rope(facts, rotary, head_dim, rope_factors),
        "attention": {
            "num_heads": heads,
            "num_kv_heads": facts.integer("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "qkv_bias": biases["qkv_bias"],
            "output_bias": biases["output_bias"],
            "sliding_window": _window(facts),
        },
        "mlp": {
            "intermediate_size": facts.integer("feed_forward_length"),
            "activation": "silu",
            "bias": biases["mlp_bias"],
        },
        "tie_embeddings": tied,
        "tensor_names": family,
    }
    _check_scale(facts, head_dim)
    facts.check_all_read()
    spec = imported_spec(source, name, model, held.formats(tied), options)
    return Imported(spec, held.notes)


def _window(facts: Facts) -> int | None:
    window = facts.integer("attention.sliding_window", 0)
    return window if window else None


def _check_scale(facts: Facts, head_dim: int) -> None:
    usual = 1 / math.sqrt(head_dim) if head_dim > 0 else 0.0
    scale = facts.number("attention.scale", usual)
    if scale and not math.isclose(scale, usual, rel_tol=1e-6):
        raise facts.refuse("attention.scale", scale, f"1 / sqrt(head_dim) = {usual:.6g}")


def _rope(facts: Facts, rotary: int, head_dim: int, factors: Sequence[float] | None) -> dict[str, Any]:
    theta = shortest_f32(facts.number("rope.freq_base", 10000.0))
    rope: dict[str, Any] = {"theta": theta, "fraction": rotary / head_dim if head_dim > 0 else 1.0}
    kind = facts.choice("rope.scaling.type", ("none", "linear"), "linear")
    factor = facts.number("rope.scaling.factor", 0.0) or facts.number("rope.scale_linear", 0.0)
    scaled = kind == "linear" and factor not in (0.0, 1.0)
    if factors is not None:
        if scaled:
            raise SpecError(f"{facts.source}: has both {ROPE_FACTORS} and a linear rope.scaling.factor; one at most")
        original = facts.integer("rope.scaling.original_context_length", 8192)
        rope["scaling"] = _llama3(facts.source, theta, rotary, factors, original)
    elif scaled:
        rope["scaling"] = {"kind": "linear", "factor": factor}
    return rope


def _llama3(source: str, theta: float, rotary: int, factors: Sequence[float], original: int) -> dict[str, Any]:
    """The scaling whose divisors these are: Llama 3's, of which only the largest divisor differs between models."""
    wrong = SpecError(
        f"{source}: the divisors in {ROPE_FACTORS} are not those of Llama 3's scaling of a context of {original}; "
        "another scaling is not supported"
    )
    if len(factors) != rotary // 2 or not factors or not all(math.isfinite(f) and f >= 1 for f in factors):
        raise wrong
    try:
        factor = shortest_f32(max(factors))
        scaling = Llama3Scaling(kind="llama3", factor=factor, original_context=original)
        scaled = rope_frequencies(Rope(theta=theta, scaling=scaling), rotary)
        plain = rope_frequencies(Rope(theta=theta), rotary)
    except ValueError as error:
        raise wrong from error
    if not all(math.isclose(p / s, f, rel_tol=1e-4) for p, s, f in zip(plain, scaled, factors, strict=True)):
        raise wrong
    return scaling.model_dump(mode="json")
