"""Finds a registered model by the name that a caller gave for MODEL."""

import logging
from functools import cache
from pathlib import Path

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.compiler.text.printable import printable
from mlxr.hub.reference import hub_reference, is_in_a_folder
from mlxr.loading.options import NO_OPTIONS
from mlxr.registry.errors import RegistryError
from mlxr.registry.file_status import status_of
from mlxr.registry.names import close_names
from mlxr.registry.records import ModelRecord
from mlxr.registry.registry import Registry

_LOG = logging.getLogger(__name__)

_MAX_NAMED = 12


def named_model(name: str) -> ModelRecord | None:
    """The registered model of that name; None for a bundled model's name and for a path that exists.

    Raises:
        SpecError: it is neither of these three.
        RegistryError: the model's path does not exist any more, or the registry cannot be read.
    """
    if name in bundled_specs() or _exists(name):
        return None
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


def note_use(model: ModelRecord) -> None:
    """Notes in the registry that a model was loaded, and tells of a file that changed. Neither stops the caller."""
    if (status := status_of(model.files)).state != "ok":
        options = "" if model.options == NO_OPTIONS else ", and its options"
        again = f"mlxr add {model.source} --name {model.name} --replace{options}"
        _warn(f"{model.name}: {status} since it was added; to add it as it is now: {again}")
    try:
        Registry().touch(model.name)
    except RegistryError as error:
        _warn(f"the registry does not know of this use: {error}")


@cache
def _warn(text: str) -> None:
    """Logs a note, once in a process."""
    _LOG.warning("note: %s", printable(text))


def _exists(name: str) -> bool:
    """Whether there is a file or folder; also if that cannot be found out, so that whoever opens it says why."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return True


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
