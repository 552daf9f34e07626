"""What MODEL means: the only place where a name is looked up.

It is an artifact, a spec, a bundled model's name, a model's own files, or a name in the user's registry, over which a
path wins.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.compiler.spec.model import ModelSpec
from mlxr.hub.reference import hub_reference, is_in_a_folder
from mlxr.loading.options import NO_OPTIONS, LoadOptions
from mlxr.loading.path_exists import path_exists
from mlxr.registry import RegistryError
from mlxr.registry.records import ModelRecord, close_names
from mlxr.registry.registry import Registry
from mlxr.runtime.argument_types import PATH, expect

MODEL_HELP = (
    "an artifact folder, a spec file, a bundled or registered model's name, a .gguf file, or a Hugging Face folder"
)
_MAX_NAMED = 12


@dataclass(frozen=True)
class FoundModel:
    """A model that is there, and how it is loaded.

    Attributes:
        model: an artifact, a spec, a bundled model's name, or a path; no registered name.
        options: how it is loaded: as the caller says, else as it was registered.
        registered: what the registry says of it; None: its name is not of there.
    """

    model: Artifact | ModelSpec | str
    options: LoadOptions = NO_OPTIONS
    registered: ModelRecord | None = None

    @cached_property
    def kind(self) -> Literal["artifact", "spec", "files"]:
        """What it is: an artifact, or a folder that can only be one; a spec; or a model's own files."""
        if not isinstance(self.model, str):
            return "artifact" if isinstance(self.model, Artifact) else "spec"
        if self.model in bundled_specs():
            return "spec"
        from mlxr.loading.imported_model import is_model_file  # noqa: PLC0415 (reads GGUF: only when needed)

        if is_model_file(Path(self.model)):
            return "files"
        return "artifact" if Path(self.model).is_dir() else "spec"


def find_model(model: "Artifact | ModelSpec | str | os.PathLike[str]", options: LoadOptions = NO_OPTIONS) -> FoundModel:
    """Finds a model by what a caller gave for MODEL.

    Args:
        model: an artifact, a spec, a path, a bundled or a registered model's name.
        options: how the caller wants it to be loaded.

    Raises:
        TypeError: an argument of a wrong type.
        SpecError: there is no such model.
        RegistryError: a registered model's path does not exist any more, or the registry cannot be read.
    """
    expect("model", model, (Artifact, ModelSpec, *PATH), "an artifact, a spec, or a name or path")
    if isinstance(model, Artifact | ModelSpec):
        return FoundModel(model, options)
    name = os.fspath(model)
    if name in bundled_specs() or path_exists(name):
        return FoundModel(name, options)
    registered = _registered(name)
    return FoundModel(os.fspath(registered.source), options.over(registered.options), registered)


def _registered(name: str) -> ModelRecord:
    """The registered model of that name."""
    try:
        registry = Registry()
        model, names = registry.get(name), registry.names()
    except RegistryError as error:
        raise RegistryError(
            f"{name}: no such file, and no bundled model of that name; whether it is registered cannot be found out: "
            f"{error}"
        ) from error
    if model is None:
        raise SpecError(_unknown(name, names))
    if not model.source.exists():
        raise RegistryError(
            f"{name} is registered for {model.source}, which is not there any more; put it back, or take the name from "
            f"the registry: mlxr remove {name}"
        )
    return model


def _unknown(name: str, registered: tuple[str, ...]) -> str:
    bundled = tuple(bundled_specs())
    more = ", ..." if len(registered) > _MAX_NAMED else ""
    listed = f"; registered are {', '.join(registered[:_MAX_NAMED])}{more}" if registered else ""
    close = close_names(Path(name).name.removesuffix(".yaml"), (*bundled, *registered))
    quoted = [f'"{each}"' for each in close]
    hint = f"\n  fix: did you mean {' or '.join(quoted)}?" if close else ""
    if hub_reference(name) is not None and not is_in_a_folder(name):
        hint += f"\n  fix: mlxr pull {name} fetches it, if it is a model on the hub"
    return (
        f"{name}: no such file, and no bundled or registered model of that name; bundled are {', '.join(bundled)}"
        f"{listed}{hint}"
    )
