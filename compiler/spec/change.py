"""Changes of a spec that the options of a command ask for."""

from dataclasses import dataclass
from typing import Any, Literal

from mlxr.compiler.spec.adapters import Adapters
from mlxr.compiler.spec.fields import Output, parse_size
from mlxr.compiler.spec.load import dump_spec, parse_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.parallel import Parallel


@dataclass(frozen=True)
class Changes:
    """What options change of a spec.

    Raises:
        TypeError: a field has a value of a wrong type.

    Attributes:
        context: longest sequence; None: as the spec says, or the importer.
        needed_context: if the spec lets memory decide, at least this.
        sequences: at least so many at once.
        compute: None: as the spec says.
        activation_dtype: element type of activations; None: as the spec says.
        cache_dtype: element type of the cache; None: as the spec says.
        accepted_keys: keys of config.json or of GGUF metadata that would be refused, and that change nothing.
        force_context: whether the context may be longer than the model's own.
        cache_memory: most bytes of the cache, or a size such as `4GiB`: enough for a sequence of full context.
            None: as the spec says, or enough for all sequences.
        deterministic: whether steps are to be deterministic; False: as the spec says.
        output: what a step gives, `logits` or, for embeddings, `hidden`; None: as the spec says.
        parallel: how the model is split over ranks; None: as the spec says.
        keep_windows: whether layers that see a window of tokens keep all of them; False: as the spec says.
        mtp: whether a head of the model's own that guesses is part of the spec, where there is one; None: as the spec
            says, and without it where the spec is made of a model's files.
        adapters: places for adapters; None: as the spec says.
        experts_on_cpu: how many layers have their experts on the CPU; None: as the spec says.
        trust_artifact: whether an artifact's code runs even if it is not what its spec compiles to.
    """

    context: int | None = None
    needed_context: int = 1
    sequences: int = 1
    compute: Literal["exact", "fast"] | None = None
    activation_dtype: Literal["f32", "f16", "bf16"] | None = None
    cache_dtype: Literal["f32", "f16", "bf16", "q8", "q4"] | None = None
    accepted_keys: tuple[str, ...] = ()
    force_context: bool = False
    cache_memory: int | str | None = None
    deterministic: bool = False
    output: Output | None = None
    parallel: Parallel | None = None
    keep_windows: bool = False
    mtp: bool | None = None
    trust_artifact: bool = False
    adapters: Adapters | None = None
    experts_on_cpu: int | None = None

    def __post_init__(self) -> None:
        """Checks the type of every field; `changed` checks the values."""
        for name, (types, words) in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise TypeError(f"{name} is {value!r}, of type {type(value).__name__}; expected {words}")
        for key in self.accepted_keys:
            if not isinstance(key, str):
                raise TypeError(f"accepted_keys has {key!r}, of type {type(key).__name__}; expected text")


_OPTIONAL_TEXT = ((str, type(None)), "text or None")
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "context": ((int, type(None)), "a whole number or None"),
    "needed_context": ((int,), "a whole number"),
    "sequences": ((int,), "a whole number"),
    "compute": _OPTIONAL_TEXT,
    "activation_dtype": _OPTIONAL_TEXT,
    "cache_dtype": _OPTIONAL_TEXT,
    "accepted_keys": ((tuple, list), "a tuple of keys"),
    "force_context": ((bool,), "True or False"),
    "deterministic": ((bool,), "True or False"),
    "output": _OPTIONAL_TEXT,
    "cache_memory": ((int, str, type(None)), "bytes, a size such as 4GiB, or None"),
    "parallel": ((Parallel, type(None)), "mlxr.Parallel or None"),
    "keep_windows": ((bool,), "True or False"),
    "mtp": ((bool, type(None)), "True, False or None"),
    "trust_artifact": ((bool,), "True or False"),
    "adapters": ((Adapters, type(None)), "mlxr.Adapters or None"),
    "experts_on_cpu": ((int, type(None)), "a whole number or None"),
}

NO_CHANGES = Changes()


def with_block_size(spec: ModelSpec, size: int) -> ModelSpec:
    """The spec with blocks of the cache of so many tokens; where it counts blocks, with as many as hold as many tokens.

    Raises:
        SpecError: the changed spec contradicts itself.
    """
    cache = spec.cache
    blocks = None if cache.num_blocks is None else -(-cache.num_blocks * cache.block_size // size)
    changed_cache = cache.model_copy(update={"block_size": size, "num_blocks": blocks})
    return parse_spec(dump_spec(spec.model_copy(update={"cache": changed_cache})), f"{spec.name}, in other blocks")


def changed(spec: ModelSpec, changes: Changes) -> ModelSpec:
    """The spec with the changes that were asked for, checked anew.

    Raises:
        SpecError: the changed spec contradicts itself.
    """
    model, cache = spec.model, spec.cache
    if changes.context is not None:
        model = model.model_copy(update={"context": changes.context})
        cache = cache.model_copy(update={"least_context": None})  # a context that is asked for is never cut
    if changes.mtp is False:
        model = model.model_copy(update={"mtp": None})
    if changes.sequences > cache.max_sequences:
        cache = cache.model_copy(update={"max_sequences": changes.sequences})
    if changes.cache_dtype is not None:
        cache = cache.model_copy(update={"dtype": changes.cache_dtype})
    if changes.cache_memory is not None:
        cache = cache.model_copy(update={"memory_budget": parse_size(changes.cache_memory), "num_blocks": None})
    if changes.keep_windows and any(attention.sliding_window for attention in model.attentions):
        cache = cache.model_copy(update={"keep_windows": True})
    update: dict[str, Any] = {"model": model, "cache": cache, "compute": changes.compute or spec.compute}
    update["output"] = changes.output or spec.output
    update["deterministic"] = changes.deterministic or spec.deterministic
    update["activation_dtype"] = changes.activation_dtype or spec.activation_dtype
    update["adapters"] = changes.adapters or spec.adapters
    update["parallel"] = changes.parallel or spec.parallel
    if changes.experts_on_cpu is not None:
        update["experts_on_cpu"] = changes.experts_on_cpu
    result = spec.model_copy(update=update)
    return spec if result == spec else parse_spec(dump_spec(result), f"{spec.name}, as the options change it")
