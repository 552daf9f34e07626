"""Imports a model from its own files: a GGUF file, or a folder as Hugging Face lays it out."""

from functools import partial
from pathlib import Path

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats.file_keys import CONFIG_BYTES, CONFIG_FILE
from mlxr.compiler.importers.config import spec_from_config
from mlxr.compiler.importers.gguf import FACTOR_TENSORS, spec_from_gguf
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.other_files import is_gguf
from mlxr.runtime.json_file import read_json_object
from mlxr.runtime.weights.gguf_parts import model_name, only_model
from mlxr.runtime.weights.head_tensors import with_head
from mlxr.runtime.weights.mapped_weights import same_numbers
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.weight_file import WeightFile

_MAX_FACTORS = 4096


def is_model_file(path: Path) -> bool:
    """Whether a path is a GGUF file, whatever its name, or a folder with a config.json or with one GGUF model."""
    try:
        if path.is_dir():
            return (path / CONFIG_FILE).is_file() or only_model(path.glob("*.gguf")) is not None
        return is_gguf(path)
    except (OSError, ValueError):  # a name too long, a folder that may not be searched: find_spec says so
        return False


def import_model(path: Path, options: ImportOptions) -> tuple[ModelSpec, Path]:
    """The spec of the model in `path`, and its weights.

    Raises:
        WeightsError: the weights are corrupt, or there are none.
        SpecError: the model is not supported; the message names what is not.
    """
    weights = path
    if path.is_dir() and not (path / CONFIG_FILE).is_file():
        weights = only_model(path.glob("*.gguf")) or path
    file = open_weights(weights)
    name = _folder_name(path.absolute()) if path.is_dir() and weights == path else model_name(weights)
    spec = import_weights(file, name, options)
    if spec is None:
        raise SpecError(f"{path}: has no {CONFIG_FILE}, so nothing says what model this is")
    return spec, weights


def _folder_name(folder: Path) -> str:
    """A folder's name; of a folder in huggingface_hub's cache, models--ORG--REPO/snapshots/COMMIT, the repository's."""
    repository = folder.parent.parent.name
    return repository.rpartition("--")[2] if folder.parent.name == "snapshots" and repository else folder.name


def import_weights(file: WeightFile, name: str, options: ImportOptions) -> ModelSpec | None:
    """The spec of the model that a weight file belongs to; None if there is no config.json beside safetensors.

    Raises:
        SpecError: as `import_model`.
    """
    if options.mtp:
        file = with_head(file) or file
    tensors = {key: TensorFact(info.shape, info.type) for key, info in file.tensors.items()}
    if file.format == "gguf":
        return spec_from_gguf(file.metadata, tensors, name, str(file.path), options, read_factors(file))
    config = file.path.with_name(CONFIG_FILE)
    if not config.is_file():
        return None
    return spec_from_config(
        read_json_object(config, CONFIG_BYTES, SpecError),
        tensors,
        name,
        str(config),
        options,
        partial(same_numbers, file),
    )


def read_factors(file: WeightFile) -> dict[str, list[float]]:
    """The values of the tensors of RoPE divisors, which are part of a GGUF file's description of its model.

    Raises:
        SpecError: they are no such tensors.
    """
    factors = {}
    for name in FACTOR_TENSORS:
        info = file.tensors.get(name)
        if info is None:
            continue
        if info.num_elements > _MAX_FACTORS or not (info.element_type.is_float and info.element_type.is_readable):
            raise SpecError(f"{file.path}: {name} is {list(info.shape)} {info.type}; expected floats, one a pair")
        factors[name] = [float(number) for number in file.read(name).ravel()]
    return factors
