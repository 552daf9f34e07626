"""MLXR: compiles a language-model spec into specialised kernels and runs them over a paged KV arena.

For example:

    with mlxr.load("model.gguf") as model:
        print(model.generate("Once upon a time", max_tokens=64).text)
        for event in model.stream("The fox said"):
            print(event.text, end="")

`load` takes whatever the commands take for MODEL, a `ModelSpec`, or an `Artifact` that `compile` returned. Errors that
a user can do something about are `MlxrError`s; an argument of a wrong type raises TypeError.
"""

from typing import TYPE_CHECKING, Any

from mlxr.compiler.errors import (
    ArenaError,
    ArenaFullError,
    ArtifactError,
    BudgetError,
    ChatTemplateError,
    ContextError,
    GraphError,
    HostError,
    KernelFault,
    MlxrError,
    NoTokenizerError,
    OptionError,
    PlanError,
    RankError,
    RankLostError,
    RequestError,
    SpecError,
    TokenizerError,
    WeightsError,
)
from mlxr.compiler.version import VERSION

if TYPE_CHECKING:
    import os

    from mlxr.compiler.artifact import Artifact
    from mlxr.compiler.spec.adapters import Adapters
    from mlxr.compiler.spec.change import Changes
    from mlxr.compiler.spec.model import ModelSpec
    from mlxr.compiler.spec.parallel import Parallel
    from mlxr.hub import HubError
    from mlxr.loading.engine import Engine
    from mlxr.loading.load import load
    from mlxr.registry import NameTakenError, RegistryError
    from mlxr.runtime.cache.tiers.tier_sizes import TierSizes
    from mlxr.runtime.engine.completion import Completion, Event
    from mlxr.runtime.engine.conversation import Conversation
    from mlxr.runtime.engine.errors import EngineError, PromptTooLongError, QueueFullError
    from mlxr.runtime.engine.generation import Generation
    from mlxr.runtime.engine.model import Model
    from mlxr.runtime.engine.reasoning import Reasoning
    from mlxr.runtime.engine.sampling import Sampling, ThoughtLimit

__version__ = VERSION

__all__ = [
    "Adapters",
    "ArenaError",
    "ArenaFullError",
    "Artifact",
    "ArtifactError",
    "BudgetError",
    "Changes",
    "ChatTemplateError",
    "Completion",
    "ContextError",
    "Conversation",
    "Engine",
    "EngineError",
    "Event",
    "Generation",
    "GraphError",
    "HostError",
    "HubError",
    "KernelFault",
    "MlxrError",
    "Model",
    "ModelSpec",
    "NameTakenError",
    "NoTokenizerError",
    "OptionError",
    "Parallel",
    "PlanError",
    "PromptTooLongError",
    "QueueFullError",
    "RankError",
    "RankLostError",
    "Reasoning",
    "RegistryError",
    "RequestError",
    "Sampling",
    "SpecError",
    "ThoughtLimit",
    "TierSizes",
    "TokenizerError",
    "WeightsError",
    "__version__",
    "compile",
    "load",
]

# Names are imported when they are first used, so that `mlxr-compile` never waits for MLX.
_HOMES = {
    "HubError": "mlxr.hub",
    "RegistryError": "mlxr.registry",
    "NameTakenError": "mlxr.registry",
    "QueueFullError": "mlxr.runtime.engine.errors",
    "EngineError": "mlxr.runtime.engine.errors",
    "PromptTooLongError": "mlxr.runtime.engine.errors",
    "Artifact": "mlxr.compiler.artifact",
    "Changes": "mlxr.compiler.spec.change",
    "ModelSpec": "mlxr.compiler.spec.model",
    "Adapters": "mlxr.compiler.spec.adapters",
    "Parallel": "mlxr.compiler.spec.parallel",
    "Completion": "mlxr.runtime.engine.completion",
    "Conversation": "mlxr.runtime.engine.conversation",
    "Engine": "mlxr.loading.engine",
    "Event": "mlxr.runtime.engine.completion",
    "Generation": "mlxr.runtime.engine.generation",
    "Model": "mlxr.runtime.engine.model",
    "load": "mlxr.loading.load",
    "TierSizes": "mlxr.runtime.cache.tiers.tier_sizes",
    "Reasoning": "mlxr.runtime.engine.reasoning",
    "Sampling": "mlxr.runtime.engine.sampling",
    "ThoughtLimit": "mlxr.runtime.engine.sampling",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlxr' has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__


def compile(
    spec: "str | os.PathLike[str] | ModelSpec", *, changes: "Changes | None" = None, chip: str | None = None
) -> "Artifact":
    """Compiles a model.

    Args:
        spec: a ModelSpec, a spec file, a bundled model's name, a .gguf file, or a Hugging Face or mlx-lm folder.
        changes: changes to its spec: context, sequences, types, ranks.
        chip: the GPU to choose launch geometry for (`h200`, say); None: none in particular.

    Returns:
        The artifact, in memory; `artifact.write(folder)` puts it on disk.

    Raises:
        TypeError: an argument of a wrong type.
        SpecError: the spec does not parse or contradicts itself, or the model's family is not known.
        WeightsError: the model's own files are corrupt, or hold other tensors than they say.
        BudgetError: it needs more memory than its budget allows.
        PlanError: there is no such chip.
    """
    import os  # noqa: PLC0415

    from mlxr.compiler.chips.catalog import find_chip  # noqa: PLC0415
    from mlxr.compiler.driver import compile_spec  # noqa: PLC0415
    from mlxr.compiler.spec.change import NO_CHANGES, Changes, changed  # noqa: PLC0415
    from mlxr.compiler.spec.model import ModelSpec  # noqa: PLC0415
    from mlxr.loading.resolve import check_first, resolve_spec  # noqa: PLC0415
    from mlxr.runtime.argument_types import PATH, expect  # noqa: PLC0415

    expect("spec", spec, (ModelSpec, *PATH), "a ModelSpec, or a name or path")
    expect("changes", changes, (Changes, type(None)), "mlxr.Changes")
    expect("chip", chip, (str, type(None)), "a chip's name")
    changes = changes or NO_CHANGES
    if isinstance(spec, ModelSpec):
        resolved = changed(spec, changes)
    else:
        resolved, own = resolve_spec(os.fspath(spec), changes)
        check_first(resolved, own)
    return compile_spec(resolved, chip=find_chip(chip) if chip else None).artifact
