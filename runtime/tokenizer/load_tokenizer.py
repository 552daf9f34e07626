"""Find the tokenizer that belongs to weights, and load it."""

from pathlib import Path

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_vocabulary import has_vocabulary, tokenizer_from_gguf
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights import gguf_metadata

MODEL_NAME = "tokenizer.model"
_MAX_MODEL_BYTES = 64 << 20  # the largest vocabularies take about 5 MiB
_WEIGHT_SUFFIXES = (".safetensors", ".json")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the tokenizer at or beside `path`.

    Args:
        path: a sentencepiece model file; a .gguf file, whose own vocabulary is used if it has one; a folder or another
            weight file, for the `tokenizer.model` in it or beside it (in a folder without one, its only .gguf file).

    Raises:
        TokenizerError: there is none, or it is corrupt or of another kind than sentencepiece.
        WeightsError: the .gguf file that should hold it is corrupt.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _load_from_folder(path)
        if not path.is_file():
            raise TokenizerError(f"{path}: no such file; expected {MODEL_NAME}, a .gguf file, or a folder with one")
        if _is_gguf(path):
            return _load_from_gguf(path)
        if path.suffix.lower() in _WEIGHT_SUFFIXES:
            return _load_from_folder(path.parent)
        return _load_model(path)
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror or error}") from error


def _load_from_gguf(path: Path) -> Tokenizer:
    metadata = gguf_metadata(path)
    if has_vocabulary(metadata):
        return tokenizer_from_gguf(metadata, str(path))
    beside = path.parent / MODEL_NAME
    if beside.is_file():
        return _load_model(beside)
    raise TokenizerError(f"{path}: holds no vocabulary, and there is no {MODEL_NAME} beside it")


def _load_from_folder(folder: Path) -> Tokenizer:
    if (folder / MODEL_NAME).is_file():
        return _load_model(folder / MODEL_NAME)
    gguf_files = [file for file in folder.glob("*.gguf") if file.is_file()]
    if len(gguf_files) == 1:
        return _load_from_gguf(gguf_files[0])
    hint = ""
    if (folder / "tokenizer.json").is_file():
        hint = "; its tokenizer.json is of Hugging Face's own kind, which is not supported"
    raise TokenizerError(f"{folder}: holds no {MODEL_NAME}; put the model's sentencepiece file there{hint}")


def _load_model(path: Path) -> Tokenizer:
    size_bytes = path.stat().st_size
    if size_bytes > _MAX_MODEL_BYTES:
        raise TokenizerError(f"{path}: {size_bytes} bytes is too large for a sentencepiece model")
    return Tokenizer(path.read_bytes(), str(path))


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"GGUF" or path.suffix.lower() == ".gguf"
