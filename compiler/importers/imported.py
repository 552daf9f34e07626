"""Makes a validated spec from the sections that an importer read and the choices that a file leaves open."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from mlxr.compiler.errors import ContextError, SpecError
from mlxr.compiler.spec.document import interpret
from mlxr.compiler.spec.fields import AUTO, Output
from mlxr.compiler.spec.load import parse_spec
from mlxr.compiler.spec.matrices import matrix_shapes
from mlxr.compiler.spec.model import Model, ModelSpec

LEAST_CONTEXT = 2048
"""The shortest context that an imported model is cut to where memory is short, unless its own is shorter."""


@dataclass(frozen=True)
class ImportOptions:
    """Choices that the files of a model leave open.

    Attributes:
        context: longest sequence; None: the model's own, or as much of that as memory has room for.
        needed_context: tokens that a sequence must be able to have. If it is more than 1, the caller knows how long its
            sequences are, and LongRoPE's factors for short contexts are taken where these are short.
        max_sequences: most sequences at once.
        compute: as in specs.
        activation_dtype: element type of activations; None: chosen for each target.
        cache_dtype: element type of the cache; None: chosen for each target.
        accepted_keys: keys of the file that would be refused, but change nothing according to the user.
        force_context: whether the context may be longer than the model's own.
        cache_memory: most bytes of the cache, or a size such as `4GiB`; None: enough for all sequences.
        deterministic: as in specs.
        output: as in specs.
        mtp: whether a head of the model's own that guesses is part of the spec, where the file has one.
    """

    context: int | None = None
    needed_context: int = 1
    max_sequences: int = 1
    compute: Literal["exact", "fast"] = "fast"
    activation_dtype: Literal["f32", "f16", "bf16"] | None = None
    cache_dtype: Literal["f32", "f16", "bf16", "q8", "q4"] | None = None
    accepted_keys: tuple[str, ...] = ()
    force_context: bool = False
    cache_memory: int | str | None = None
    deterministic: bool = False
    output: Output = "logits"
    mtp: bool = False


DEFAULTS = ImportOptions()


def choose_context(source: str, own: int, options: ImportOptions, ends: str | None) -> int:
    """The context to compile for.

    Args:
        source: what error messages call the model's file.
        own: the model's own context.
        options: choices that the file leaves open.
        ends: why it ends there, as in `ImportRules.context_ends`.

    Raises:
        ContextError: more is asked for than the model has.
    """
    wanted = max(options.context or 1, options.needed_context)
    if wanted > own and not options.force_context:
        reason = f", {ends}" if ends else ""
        raise ContextError(f"{source}: the model's own context is {own} tokens{reason}; {wanted} are asked for")
    return max(options.context or own, wanted)


def imported_spec(
    source: str, name: str, model: dict[str, Any], weights: dict[str, Any], options: ImportOptions
) -> ModelSpec:
    """The spec of an imported model.

    Args:
        source: what error messages call the model's file.
        name: the name of the file, from which the name of the spec is made.
        model: the spec's `model` section.
        weights: its `weights` section.
        options: choices that the file leaves open.

    Raises:
        SpecError: the dimensions contradict each other, or are more than a spec may say.
    """
    if options.context is None and options.needed_context > 1:
        model = model | {"context": _of_short_factors(model, options.needed_context)}
    if "tensors" in weights:
        weights = weights | {"tensors": _of_the_model(model, weights["tensors"])}
    data = {
        "name": spec_name(name),
        "model": model,
        "cache": {
            "dtype": options.cache_dtype or AUTO,
            "max_sequences": options.max_sequences,
            "least_context": _least_context(model["context"], options),
            "memory_budget": options.cache_memory,
        },
        "activation_dtype": options.activation_dtype or AUTO,
        "weights": weights,
        "compute": options.compute,
        "deterministic": options.deterministic,
        "output": options.output,
        "prefill_chunk": None,
    }
    with suppress(ValidationError):
        return ModelSpec.model_validate(data)
    text = yaml.safe_dump(data, sort_keys=False, width=1000)  # which messages show
    try:
        return parse_spec(text, "imported spec")
    except SpecError as error:
        raise SpecError(f"{source}: no spec can be made of what it says:\n{error}") from error


def _of_the_model(model: Mapping[str, Any], exceptions: Mapping[str, str]) -> dict[str, str]:
    """The formats of matrices that the model has: families may place a tensor in two ways, of which a model has one."""
    with suppress(ValidationError):
        names = matrix_shapes(Model.model_validate(model))
        return {pattern: held for pattern, held in exceptions.items() if any(fnmatchcase(n, pattern) for n in names)}
    return dict(exceptions)


def _of_short_factors(model: Mapping[str, Any], needed: int) -> int:
    """The model's context, or the longest with which LongRoPE has its factors for short contexts, if that is enough."""
    context: int = model["context"]
    for part in (model, *(model.get("layer_types") or {}).values()):
        scaling = (part.get("rope") or {}).get("scaling") or {}
        differs = scaling.get("kind") == "longrope" and scaling["short_factors"] != scaling["long_factors"]
        if differs and needed <= scaling["original_context"]:
            context = min(context, scaling["original_context"])
    return context


def _least_context(own: int, options: ImportOptions) -> int | None:
    """As in specs. A context that is asked for is not cut where memory is short."""
    return LEAST_CONTEXT if options.context is None and own > LEAST_CONTEXT else None


def spec_name(name: str) -> str:
    """The name, changed so that a spec may have it."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:56].strip("-._")
    return plain if plain and interpret(plain) == plain else f"model-{plain}".rstrip("-")
