"""Which files a model that a user named consists of."""

from pathlib import Path

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.loading.find_model import FoundModel
from mlxr.loading.imported_model import is_model_file
from mlxr.runtime.weights.gguf_parts import only_model


def model_files(found: FoundModel) -> Path:
    """The GGUF file (one of several stands for all), or the folder with a config.json, of a model.

    Raises:
        SpecError: it has no such files.
    """
    path = Path(str(found.model))
    if str(found.model) in bundled_specs():
        path = bundled_specs()[str(found.model)].parent
    if not is_model_file(path):
        raise SpecError(f"{found.model}: has no weights of its own; name a .gguf file or a folder with a config.json")
    if path.is_dir() and not (path / file_keys.CONFIG_FILE).is_file():
        return only_model(path.glob("*.gguf")) or path
    return path
