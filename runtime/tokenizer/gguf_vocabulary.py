"""Rebuild a sentencepiece tokenizer from the vocabulary inside a GGUF file.

A GGUF file of the kind `llama` holds the pieces, scores and kinds of a sentencepiece model in the order of their ids,
so the model can be written again and gives the same ids. Other kinds (`gpt2`: byte-level BPE, ...) are refused by name.
"""

from collections.abc import Mapping
from typing import Any

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.model_proto import Piece, write_model_proto
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6
_MAX_SCORE = 3e38  # what a model file can hold, in float32
_PREFIX = "tokenizer.ggml."
_END_KEYS = ("eot_token_id", "eom_token_id")  # further tokens that end a turn, in chat models


def has_vocabulary(metadata: Mapping[str, Any]) -> bool:
    """Whether a GGUF file's metadata holds a tokenizer."""
    kind = metadata.get(f"{_PREFIX}model", "no_vocab")
    return bool(kind != "no_vocab")


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer in a GGUF file's metadata. Where it does not name BOS or EOS, they are `<s>` and `</s>`, if any.

    Args:
        metadata: as `gguf_metadata` gives it.
        source: the file, for messages.

    Raises:
        TokenizerError: the vocabulary is malformed, or not one of sentencepiece.
    """
    kind = metadata.get(f"{_PREFIX}model")
    if kind != "llama":
        raise TokenizerError(
            f"{source}: its tokenizer is of the kind {kind!r}, expected 'llama' (sentencepiece); "
            "other kinds are not supported yet"
        )
    pieces = _pieces(metadata, source)
    unknown = [piece.text for piece in pieces if piece.kind == _UNKNOWN]
    if len(unknown) != 1:
        raise TokenizerError(f"{source}: the vocabulary has {len(unknown)} unknown tokens, expected one")
    bos_id = _token_id(metadata, "bos_token_id", len(pieces), source)
    eos_id = _token_id(metadata, "eos_token_id", len(pieces), source)
    end_ids = (_token_id(metadata, key, len(pieces), source) for key in _END_KEYS)
    proto = write_model_proto(
        pieces,
        specials=(unknown[0], _control_piece(pieces, bos_id), _control_piece(pieces, eos_id)),
        byte_fallback=any(piece.kind == _BYTE for piece in pieces),
        add_dummy_prefix=_flag(metadata, "add_space_prefix", True, source),
        remove_extra_whitespaces=_flag(metadata, "remove_extra_whitespaces", False, source),
    )
    return Tokenizer(proto, source, bos_id, eos_id, [token_id for token_id in end_ids if token_id is not None])


def _pieces(metadata: Mapping[str, Any], source: str) -> list[Piece]:
    columns = []
    for name, accepted in (("tokens", str), ("scores", (int, float)), ("token_type", int)):
        column = metadata.get(_PREFIX + name)
        if not isinstance(column, list) or not all(isinstance(value, accepted) for value in column):
            raise TokenizerError(f"{source}: the vocabulary has no proper array `{_PREFIX}{name}`")
        columns.append(column)
    tokens, scores, kinds = columns
    if not len(tokens) == len(scores) == len(kinds):
        raise TokenizerError(
            f"{source}: the vocabulary has {len(tokens)} tokens, {len(scores)} scores and {len(kinds)} types; "
            "expected as many of each"
        )
    pieces = [Piece(*row) for row in zip(tokens, scores, kinds, strict=True)]
    seen: set[str] = set()
    for token_id, piece in enumerate(pieces):
        where = f"{source}: token {token_id} of the vocabulary"
        if piece.kind not in range(1, 7):
            raise TokenizerError(f"{where} has the unknown type {piece.kind}")
        if not abs(piece.score) < _MAX_SCORE:
            raise TokenizerError(f"{where} has the impossible score {piece.score}")
        try:
            piece.text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TokenizerError(f"{where} is not UTF-8: {piece.text!a}") from error
        if not piece.text or piece.text in seen:
            raise TokenizerError(f"{where} is {'empty' if not piece.text else f'{piece.text!a} for a second time'}")
        seen.add(piece.text)
    return pieces


def _token_id(metadata: Mapping[str, Any], key: str, num_pieces: int, source: str) -> int | None:
    value = metadata.get(_PREFIX + key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < num_pieces:
        raise TokenizerError(f"{source}: `{_PREFIX}{key}` is {value!r}, expected an id below {num_pieces}")
    return value


def _control_piece(pieces: list[Piece], token_id: int | None) -> str | None:
    is_control = token_id is not None and pieces[token_id].kind == _CONTROL
    return pieces[token_id].text if token_id is not None and is_control else None


def _flag(metadata: Mapping[str, Any], key: str, default: bool, source: str) -> bool:
    value = metadata.get(_PREFIX + key, default)
    if not isinstance(value, bool):
        raise TokenizerError(f"{source}: `{_PREFIX}{key}` is {value!r}, expected true or false")
    return value
