"""Rebuilds a sentencepiece tokenizer from the vocabulary inside a GGUF file.

A GGUF file of the kind `llama` has the pieces, scores and kinds of a sentencepiece model in the order of their ids. So
the model can be written again, and it gives the same ids.
"""

import math
from collections.abc import Mapping
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    PREFIX,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    check_length,
    read_column,
    read_flag,
    read_vocabulary,
)
from mlxr.runtime.tokenizer.model_proto import Piece, write_model_proto
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr.runtime.tokenizer.token_names import TokenNames

_MAX_SCORE = 3e38  # the range of float32, which a model file uses
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in pieces
_NO_PIECE = "\U0010ffff"
_KEEPS_WHITE_SPACE = ("<unk>", "<s>", "<|endoftext|>")


def sentencepiece_from_gguf(metadata: Mapping[str, Any], source: str) -> SentencepieceTokenizer:
    """The tokenizer. If the file does not name BOS and EOS, they are the tokens 1 and 2.

    Args:
        metadata: as `gguf_metadata` returns it.
        source: the name of the file, for messages.

    Raises:
        TokenizerError: the vocabulary is malformed.
    """
    vocabulary = read_vocabulary(metadata, source, bos_id=1, eos_id=2)
    adds_space = bool(read_flag(metadata, "add_space_prefix", True, source))
    pieces = _pieces(vocabulary, read_scores(metadata, len(vocabulary.tokens), source))
    unknown_id = _unknown_id(vocabulary)
    if unknown_id is None:  # sentencepiece wants one
        unknown_id = len(pieces)
        pieces.append(Piece(_NO_PIECE, 0, UNKNOWN))
    else:
        pieces[unknown_id] = pieces[unknown_id]._replace(kind=UNKNOWN)
    special = vocabulary.special
    proto = write_model_proto(
        pieces,
        specials=(
            pieces[unknown_id].text,
            _control_piece(vocabulary, special.bos_id),
            _control_piece(vocabulary, special.eos_id),
        ),
        byte_fallback=sum(piece.kind == BYTE for piece in pieces) == 256,
        add_dummy_prefix=adds_space,
        remove_extra_whitespaces=bool(read_flag(metadata, "remove_extra_whitespaces", False, source)),
    )
    return SentencepieceTokenizer(
        proto, source, special, names=_names(vocabulary, adds_space, _is_phi3(metadata)), spellings=vocabulary.tokens
    )


def read_scores(metadata: Mapping[str, Any], num_tokens: int, source: str) -> list[float]:
    """The scores of the tokens; 0 if the file has none.

    Raises:
        TokenizerError: there are too few, or one is not a number.
    """
    if f"{PREFIX}scores" not in metadata:
        return [0.0] * num_tokens
    scores = read_column(metadata, "scores", (int, float), source)[:num_tokens]
    check_length(source, "scores", scores, num_tokens)
    if any(map(math.isnan, scores)):
        token_id = next(i for i, score in enumerate(scores) if math.isnan(score))
        raise TokenizerError(f"{source}: token {token_id} of the vocabulary has the impossible score nan")
    return [max(-_MAX_SCORE, min(_MAX_SCORE, score)) for score in scores]


def _pieces(vocabulary: Vocabulary, scores: list[float]) -> list[Piece]:
    """The pieces as sentencepiece has them: with its sign for spaces, and one token of the kind unknown at most."""
    texts = [*vocabulary.spellings]
    user_defined = vocabulary.of_kind(USER_DEFINED)
    for token_id in user_defined:
        texts[token_id] = texts[token_id].replace(" ", _SPACE)
    taken = {texts[token_id]: token_id for token_id in reversed(user_defined)}
    pieces = [Piece(*row) for row in zip(texts, scores, vocabulary.kinds, strict=True)]
    for token_id, piece in enumerate(pieces):
        if taken.get(piece.text, token_id) != token_id:  # the token with real spaces comes first
            pieces[token_id] = Piece(f"{_NO_PIECE}{token_id}", 0, UNUSED)
        elif piece.kind == UNKNOWN:
            pieces[token_id] = piece._replace(kind=CONTROL)
        elif piece.kind == BYTE and not (len(piece.text) == 6 and piece.text.startswith("<0x")):
            pieces[token_id] = piece._replace(kind=NORMAL)
    return pieces


def _unknown_id(vocabulary: Vocabulary) -> int | None:
    """The token for text that has no other, unless that is one with a text."""
    named = [] if vocabulary.unknown_id is None else [vocabulary.unknown_id]
    candidates = (*named, *vocabulary.of_kind(UNKNOWN), 0)
    return next((i for i in candidates if vocabulary.kinds[i] in (UNKNOWN, CONTROL)), None)


def _names(vocabulary: Vocabulary, adds_space: bool, is_phi3: bool) -> TokenNames:
    control = {vocabulary.spellings[i]: i for i in vocabulary.of_kind(CONTROL, UNKNOWN)}
    # Sentencepiece finds these by itself; but it puts no space before the text after them, as llama.cpp does.
    always = {}
    for token_id in vocabulary.of_kind(USER_DEFINED) if adds_space or is_phi3 else ():
        name = vocabulary.spellings[token_id]
        always[name] = always[name.replace(_SPACE, " ")] = token_id
    stripping = [i for name, i in (control | always).items() if is_phi3 and name not in _KEEPS_WHITE_SPACE]
    return TokenNames(control, always, strips_right=frozenset(stripping))


def _is_phi3(metadata: Mapping[str, Any]) -> bool:
    """Whether white space after special tokens is left out. Files do not say it; Phi-3's tokenizer.json does."""
    name = str(metadata.get("general.name", "")).lower()
    return metadata.get(file_keys.ARCHITECTURE) == "phi3" or "phi-3" in name or "phi3" in name


def _control_piece(vocabulary: Vocabulary, token_id: int | None) -> str | None:
    is_control = token_id is not None and vocabulary.kinds[token_id] == CONTROL
    return vocabulary.spellings[token_id] if token_id is not None and is_control else None
