"""Finds the tokenizer that belongs to weights, and loads it."""

from pathlib import Path

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr.runtime.tokenizer.gguf_vocabulary import CONTROL, USER_DEFINED, has_vocabulary
from mlxr.runtime.tokenizer.hub_files import NamedTokens, read_named_tokens
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens, Tokenizer
from mlxr.runtime.weights import gguf_metadata
from mlxr.runtime.weights.gguf_parts import only_model

JSON_NAME = "tokenizer.json"
MODEL_NAME = "tokenizer.model"
_MAX_BYTES = {JSON_NAME: 256 << 20, MODEL_NAME: 64 << 20}  # the largest vocabularies take about 35 and 5 MiB
_WEIGHT_SUFFIXES = (".safetensors", ".json")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Loads the tokenizer at or beside `path`.

    Args:
        path: a tokenizer.json; a sentencepiece model file; a .gguf file, whose own vocabulary is used if it has one; or
            a folder or another weight file: then the `tokenizer.json`, or else the `tokenizer.model`, in it or beside
            it (in a folder without either, its only .gguf file). JSON files beside it may name the special tokens.

    Raises:
        TokenizerError: there is none, or it is corrupt or of a kind that is not supported.
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
        if _is_gguf(path):
            return _load_from_gguf(path)
        if path.name == JSON_NAME or (path.suffix.lower() == ".json" and not (_beside(path) or _is_index(path))):
            return _load_json(path)
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
        raise TokenizerError(f"{path}: holds no vocabulary, and there is no {JSON_NAME} or {MODEL_NAME} beside it")
    return _load(beside)


def _load_from_folder(folder: Path) -> Tokenizer:
    own = _beside(folder / "weights")
    if own is not None:
        return _load(own)
    gguf_files = [file for file in folder.glob("*.gguf") if file.is_file()]
    if (file := only_model(gguf_files)) is not None:
        return _load_from_gguf(file)
    raise TokenizerError(
        f"{folder}: holds no {JSON_NAME}, no {MODEL_NAME} and no single .gguf model; put the model's own there"
    )


def _beside(path: Path) -> Path | None:
    """The tokenizer's file in the same folder. The JSON has added tokens that a sentencepiece file lacks."""
    files = (path.parent / name for name in (JSON_NAME, MODEL_NAME))
    return next((file for file in files if file.is_file()), None)


def _load(path: Path) -> Tokenizer:
    return _load_json(path) if path.name == JSON_NAME else _load_model(path)


def _load_json(path: Path) -> Tokenizer:
    import tokenizers  # noqa: PLC0415 (one of several kinds)

    from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer, library_errors  # noqa: PLC0415

    _check_size(path, JSON_NAME)
    with library_errors(str(path)):
        library = tokenizers.Tokenizer.from_file(str(path))
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
    from mlxr.runtime.tokenizer.model_proto import Piece, write_pieces  # noqa: PLC0415 (one of several kinds)
    from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer  # noqa: PLC0415

    _check_size(path, MODEL_NAME)
    proto = path.read_bytes()
    tokenizer = SentencepieceTokenizer(proto, str(path))
    named = read_named_tokens(path.parent)
    if named == NamedTokens(None, None, {}, None, None, {}):
        return tokenizer
    own = tokenizer.vocab_size
    pieces = [Piece(text, 0, CONTROL if control else USER_DEFINED) for text, control in _beyond(named, own, path)]
    if pieces:
        proto += write_pieces(pieces)  # serialised messages, joined, are one message with all elements
        tokenizer = SentencepieceTokenizer(proto, str(path))
    ids = {tokenizer.token_text(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    special = SpecialTokens(
        ids.get(named.bos) if named.bos is not None else None,
        ids.get(named.eos) if named.eos is not None else None,
        named.end_ids,
        named.add_bos,
        named.add_eos,
    )
    return SentencepieceTokenizer(proto, str(path), special, own)


def _beyond(named: NamedTokens, size: int, path: Path) -> list[tuple[str, bool]]:
    """The added tokens that a sentencepiece model of `size` pieces lacks, in the order of their ids."""
    beyond = sorted(token_id for token_id in named.added if token_id >= size)
    if beyond != list(range(size, size + len(beyond))):
        raise TokenizerError(
            f"{path.with_name('tokenizer_config.json')}: adds tokens {beyond[:4]} ... to the {size} of {path.name}; "
            f"expected them without a gap. With a {JSON_NAME} beside it, it works"
        )
    return [named.added[token_id] for token_id in beyond]


def _check_size(path: Path, kind: str) -> None:
    size_bytes = path.stat().st_size
    if size_bytes > _MAX_BYTES[kind]:
        raise TokenizerError(f"{path}: {size_bytes} bytes is too large for a {kind}")


def _is_index(path: Path) -> bool:
    return path.name.endswith(".safetensors.index.json")


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(file_keys.GGUF_MAGIC)) == file_keys.GGUF_MAGIC or path.suffix.lower() == ".gguf"
