"""MLXR: compiles a language-model spec into specialised kernels and runs them over a paged KV arena.

artifact = mlxr.compile("models/storyteller/storyteller.yaml")
model = mlxr.load(artifact, "models/storyteller/storyteller-q8_0.gguf")
print(model.generate("Once upon a time", max_tokens=64).text)
for event in model.stream("Once upon a time"):
print(event.text, end="")
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxr.compiler.version import VERSION

if TYPE_CHECKING:
    from mlxr.compiler.artifact import Artifact
    from mlxr.compiler.spec.change import Changes
    from mlxr.compiler.spec.model import ModelSpec
    from mlxr.model_source import load
    from mlxr.runtime.completion import Completion, Event
    from mlxr.runtime.conversation import Conversation
    from mlxr.runtime.generate import Generation
    from mlxr.runtime.model import Model
    from mlxr.runtime.sampling import Sampling

__version__ = VERSION

__all__ = [
    "Artifact",
    "Changes",
    "Completion",
    "Conversation",
    "Event",
    "Generation",
    "Model",
    "ModelSpec",
    "Sampling",
    "__version__",
    "compile",
    "load",
]

# Names are imported when first used, so that `mlxr-compile` never waits for MLX.
_HOMES = {
    "Artifact": "mlxr.compiler.artifact",
    "Changes": "mlxr.compiler.spec.change",
    "ModelSpec": "mlxr.compiler.spec.model",
    "Completion": "mlxr.runtime.completion",
    "Conversation": "mlxr.runtime.conversation",
    "Event": "mlxr.runtime.completion",
    "Generation": "mlxr.runtime.generate",
    "Model": "mlxr.runtime.model",
    "load": "mlxr.model_source",
    "Sampling": "mlxr.runtime.sampling",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlxr' has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__


def compile(spec: "str | Path | ModelSpec", *, chip: str | None = None) -> "Artifact":
    """Compiles a spec.

    Args:
        spec: a ModelSpec, a YAML file, or the name of a bundled model.
        chip: the GPU to choose launch geometry for, `h200` say; None: none in particular.

    Returns:
        The artifact, in memory; `artifact.write(folder)` puts it on disk.

    Raises:
        SpecError: the spec does not parse or contradicts itself.
        BudgetError: it needs more memory than it allows itself.
        PlanError: there is no such chip.
    """
    from mlxr.compiler.chips.catalog import find_chip  # noqa: PLC0415
    from mlxr.compiler.driver import compile_spec  # noqa: PLC0415
    from mlxr.compiler.errors import SpecError  # noqa: PLC0415
    from mlxr.compiler.spec.catalog import find_spec  # noqa: PLC0415
    from mlxr.compiler.spec.load import load_spec  # noqa: PLC0415
    from mlxr.compiler.spec.model import ModelSpec  # noqa: PLC0415

    if isinstance(spec, str | Path):
        spec = load_spec(find_spec(spec))
    if not isinstance(spec, ModelSpec):
        raise SpecError(f"a spec is a ModelSpec, a path or a bundled model's name, not {type(spec).__name__}")
    return compile_spec(spec, chip=find_chip(chip) if chip else None).artifact
