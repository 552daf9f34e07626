"""Changes of a spec that the options of a command ask for."""

from dataclasses import dataclass
from typing import Any, Literal

from mlxr.compiler.spec.load import dump_spec, parse_spec
from mlxr.compiler.spec.model import ModelSpec


@dataclass(frozen=True)
class Changes:
    """What options change of a spec.

    Attributes:
        context: longest sequence; None: as the spec says, or the importer.
        needed_context: of a model that is imported, at least this.
        sequences: at least so many at once.
        compute: None: as the spec says.
        activation_dtype: element type of activations; None: as the spec says.
        cache_dtype: element type of the cache; None: as the spec says.
        accepted_keys: keys of config.json or of GGUF metadata that would be refused, and that change nothing.
        force_context: whether the context may be longer than the model's own.
    """

    context: int | None = None
    needed_context: int = 1
    sequences: int = 1
    compute: Literal["exact", "fast"] | None = None
    activation_dtype: Literal["f32", "f16", "bf16"] | None = None
    cache_dtype: Literal["f32", "f16", "bf16", "q8"] | None = None
    accepted_keys: tuple[str, ...] = ()
    force_context: bool = False


NO_CHANGES = Changes()


def changed(spec: ModelSpec, changes: Changes) -> ModelSpec:
    """The spec with the changes that were asked for, checked anew.

    Raises:
        SpecError: the changed spec contradicts itself.
    """
    model, cache = spec.model, spec.cache
    if changes.context is not None:
        model = model.model_copy(update={"context": changes.context})
    if changes.sequences > cache.max_sequences:
        cache = cache.model_copy(update={"max_sequences": changes.sequences})
    if changes.cache_dtype is not None:
        cache = cache.model_copy(update={"dtype": changes.cache_dtype})
    update: dict[str, Any] = {"model": model, "cache": cache, "compute": changes.compute or spec.compute}
    update["activation_dtype"] = changes.activation_dtype or spec.activation_dtype
    found = spec.model_copy(update=update)
    return spec if found == spec else parse_spec(dump_spec(found), f"{spec.name}, as the options change it")
