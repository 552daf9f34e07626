"""Finds out what a path to weights is, and opens it.

A path may be a .safetensors file, a safetensors index, a .gguf file, or a folder with one of these, as Hugging Face has
it. A file may be one of several that are one model. Pickled checkpoints are refused, because reading one runs code from
it.
"""

from pathlib import Path

from mlxr.compiler.artifact import file_keys, foreign_file
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.gguf_parts import only_model, read_gguf_model
from mlxr.runtime.weights.safetensors_index import numbered_model, read_safetensors, read_safetensors_index
from mlxr.runtime.weights.usual_names import with_usual_names
from mlxr.runtime.weights.weight_file import WeightFile

INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"


def open_weights(path: str | Path) -> WeightFile:
    """Opens weights by reading and checking their headers; no tensor is read.

    Raises:
        WeightsError: there are no weights at `path`, or they are corrupt or of an unknown kind.
    """
    path = _find_file(Path(path))
    suffix = path.suffix.lower()
    if suffix in file_keys.PICKLE_ENDINGS:
        raise WeightsError(_pickle_refusal(path))
    if (kind := foreign_file(path)) is not None:
        raise WeightsError(f"{path} is {kind}")
    if suffix == ".gguf" or _first_bytes(path) == file_keys.GGUF_MAGIC:
        header = read_gguf_model(path)
        tensors, beside = with_usual_names(header.tensors, path, "gguf")
        return WeightFile(path, "gguf", tensors, header.metadata, beside)
    if suffix == ".safetensors" or path.name.endswith(".index.json"):
        read = read_safetensors if suffix == ".safetensors" else read_safetensors_index
        tensors, beside = with_usual_names(read(path), path, "safetensors")
        return WeightFile(path, "safetensors", tensors, beside=beside)
    raise WeightsError(
        f"{path}: unknown kind of weight file; expected a name ending in .safetensors, .gguf or .safetensors.index.json"
    )


def _find_file(path: Path) -> Path:
    try:  # is_dir and the like fail too: a name is too long, or a folder may not be searched
        if path.is_dir():
            path = _find_in_folder(path)
        if not path.exists():
            raise WeightsError(
                f"{path}: no such file or folder; expected a .safetensors or .gguf file, or a folder of them"
            )
        if not path.is_file():
            raise WeightsError(
                f"{path}: not a regular file; expected a .safetensors or .gguf file, or a folder of them"
            )
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return path


def _find_in_folder(folder: Path) -> Path:
    files = sorted(entry for entry in folder.iterdir() if entry.is_file())
    for name in (_SINGLE_NAME, INDEX_NAME):
        if folder / name in files:
            return folder / name
    for suffix in (".safetensors", ".gguf"):
        matching = [file for file in files if file.suffix.lower() == suffix]
        if file := (only_model if suffix == ".gguf" else numbered_model)(matching):
            return file
        if len(matching) == 1:
            return matching[0]
        if matching:
            names = ", ".join(file.name for file in matching[:8])
            raise WeightsError(
                f"{folder}: holds {len(matching)} {suffix} files and no {INDEX_NAME}; name the one to load: {names}"
            )
    pickles = [file for file in files if file.suffix.lower() in file_keys.PICKLE_ENDINGS]
    if pickles:
        raise WeightsError(_pickle_refusal(pickles[0]))
    raise WeightsError(f"{folder}: holds no weights; expected {_SINGLE_NAME}, {INDEX_NAME} or a .gguf file")


def _pickle_refusal(path: Path) -> str:
    return (
        f"{path}: refused: a {path.suffix} file is a pickle and can run code when read; convert it to safetensors, "
        'if you trust it: python -c "import sys, torch; from safetensors.torch import save_file; '
        "save_file({name: tensor.contiguous() for name, tensor in torch.load(sys.argv[1], weights_only=True).items()}, "
        "'model.safetensors')\" FILE"
    )


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(len(file_keys.GGUF_MAGIC))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
