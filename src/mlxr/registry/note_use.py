"""What is noted when a registered model is loaded."""

import logging
from functools import cache

from mlxr.compiler.text import printable
from mlxr.loading.options import NO_OPTIONS
from mlxr.registry.errors import RegistryError
from mlxr.registry.file_status import status_of
from mlxr.registry.records import ModelRecord
from mlxr.registry.registry import Registry

_LOG = logging.getLogger(__name__)


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
