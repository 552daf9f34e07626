"""Finds the tokenizer that belongs to weights, and loads it."""

from pathlib import Path

from mlxr.compiler.artifact import file_keys, foreign_file
from mlxr.compiler.errors import NoTokenizerError, TokenizerError
from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr.runtime.tokenizer.gguf_vocabulary import has_vocabulary
from mlxr.runtime.tokenizer.hub_files import read_named_tokens
from mlxr.runtime.tokenizer.text_growth import check_file
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens, Tokenizer
from mlxr.runtime.weights import gguf_metadata
from mlxr.runtime.weights.gguf_parts import only_model

# ruff: noqa: PLC0415 (each kind needs one of two libraries)

JSON_NAME = "tokenizer.json"
MODEL_NAME = "tokenizer.model"
_MODEL_NAMES = (MODEL_NAME, "spiece.model", "sentencepiece.bpe.model", "sentencepiece.model")
_TEKKEN_NAME = "tekken.json"
_VOCAB_NAME, _MERGES_NAME, _WORDS_NAME = "vocab.json", "merges.txt", "vocab.txt"
_NAMES = (JSON_NAME, *_MODEL_NAMES, _TEKKEN_NAME, _VOCAB_NAME, _WORDS_NAME)
_MAX_BYTES = {JSON_NAME: 256 << 20, MODEL_NAME: 64 << 20}  # the largest vocabularies take about 35 and 5 MiB
_WEIGHT_SUFFIXES = (".safetensors", ".json")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Loads the tokenizer at or beside `path`.

    Args:
        path: a tokenizer.json; a sentencepiece model file; a .gguf file, whose own vocabulary is used if it has one; or
            a folder or another weight file: then the `tokenizer.json`, or else the `tokenizer.model`, `vocab.json`
            with `merges.txt`, or `vocab.txt`, in it or beside it (in a folder without any, its only .gguf file). JSON
            files beside it may name the special tokens.

    Raises:
        NoTokenizerError: a folder or weights come without one.
        TokenizerError: it is missing, corrupt or of a kind that is not supported.
        WeightsError: the .gguf file that should contain it is corrupt.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _load_from_folder(path)
        if not path.is_file():
            raise TokenizerError(
                f"{path}: no such file; expected {JSON_NAME}, {MODEL_NAME}, a .gguf file, or a folder with one"
            )
        _refuse_foreign(path)
        if _is_gguf(path):
            return _load_from_gguf(path)
        if path.name == JSON_NAME or _is_json_tokenizer(path):
            return _load_json(path)
        if path.name in (_TEKKEN_NAME, _VOCAB_NAME, _WORDS_NAME):
            return _load(path)
        if path.suffix.lower() in _WEIGHT_SUFFIXES:
            return _load_from_folder(path.parent)
        return _load_model(path)
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror or error}") from error


def _load_from_gguf(path: Path) -> Tokenizer:
    metadata = gguf_metadata(path)
    if has_vocabulary(metadata):
        return tokenizer_from_gguf(metadata, str(path))
    beside = _beside(path)
    if beside is None:
        raise NoTokenizerError(f"{path}: holds no vocabulary, and there is no {JSON_NAME} or {MODEL_NAME} beside it")
    return _load(beside)


def _load_from_folder(folder: Path) -> Tokenizer:
    own = _beside(folder / "weights")
    if own is not None:
        return _load(own)
    gguf_files = [file for file in folder.glob("*.gguf") if file.is_file()]
    if (file := only_model(gguf_files)) is not None:
        return _load_from_gguf(file)
    raise NoTokenizerError(
        f"{folder}: holds no {JSON_NAME}, no {MODEL_NAME} and no single .gguf model; put the model's own there"
    )


def _beside(path: Path) -> Path | None:
    """The tokenizer's file in the same folder. The JSON has added tokens that a sentencepiece file lacks."""
    files = (path.parent / name for name in _NAMES)
    return next((file for file in files if file.is_file() and _is_whole(file)), None)


def _is_whole(file: Path) -> bool:
    return file.name != _VOCAB_NAME or file.with_name(_MERGES_NAME).is_file()


def _refuse_foreign(path: Path) -> None:
    if (kind := foreign_file(path)) is not None:
        raise TokenizerError(f"{path} is {kind}")


def _load(path: Path) -> Tokenizer:
    _refuse_foreign(path)
    if path.name == JSON_NAME:
        return _load_json(path)
    if path.name == _TEKKEN_NAME:
        from mlxr.runtime.tokenizer.tekken_file import load_tekken

        return load_tekken(path)
    if path.name not in (_VOCAB_NAME, _WORDS_NAME):
        return _load_model(path)
    from mlxr.runtime.tokenizer.vocabulary_files import load_byte_level, load_wordpiece

    return load_wordpiece(path) if path.name == _WORDS_NAME else load_byte_level(path, path.with_name(_MERGES_NAME))


def _load_json(path: Path) -> Tokenizer:
    import tokenizers

    from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer, library_errors

    _check_size(path, JSON_NAME)
    with library_errors(str(path)):
        data = path.read_bytes()
        check_file(data, str(path))
        library = tokenizers.Tokenizer.from_buffer(data)
        named = read_named_tokens(path.parent)
        special = SpecialTokens(
            library.token_to_id(named.bos) if named.bos is not None else None,
            library.token_to_id(named.eos) if named.eos is not None else None,
            named.end_ids,
            named.add_bos,
            named.add_eos,
        )
    return LibraryTokenizer(library, str(path), special)


def _load_model(path: Path) -> Tokenizer:
    from mlxr.runtime.tokenizer.sentencepiece_files import load_sentencepiece

    _check_size(path, MODEL_NAME)
    return load_sentencepiece(path)


def _check_size(path: Path, kind: str) -> None:
    size_bytes = path.stat().st_size
    if size_bytes > _MAX_BYTES[kind]:
        raise TokenizerError(f"{path}: {size_bytes} bytes is too large for a {kind}")


def _is_json_tokenizer(path: Path) -> bool:
    is_weights = path.name.endswith(".safetensors.index.json") or path.name in (_VOCAB_NAME, _TEKKEN_NAME)
    return path.suffix.lower() == ".json" and not is_weights and _beside(path) is None


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(file_keys.GGUF_MAGIC)) == file_keys.GGUF_MAGIC or path.suffix.lower() == ".gguf"
