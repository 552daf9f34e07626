"""Rebuilds a sentencepiece tokenizer from the vocabulary inside a GGUF file.

A GGUF file of the kind `llama` (BPE), `t5` or `plamo2` (Unigram) has the pieces, scores and kinds of a sentencepiece
model in the order of their ids. So the model can be written again, and it gives the same ids.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    PREFIX,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    GgufVocabulary,
    check_length,
    read_column,
    read_flag,
    read_vocabulary,
    stripping_names,
)
from mlxr.runtime.tokenizer.model_proto import BPE, NO_PIECE, UNIGRAM, Piece, Pieces, write_model_proto
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr.runtime.tokenizer.token_names import TokenNames

_MAX_SCORE = 3e38  # the range of float32, which a model file uses
_BYTE_NAMES = [f"<0x{byte:02X}>" for byte in range(256)]
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in pieces


@dataclass(frozen=True)
class _Kind:
    """What holds for all files of a kind, where they do not say otherwise."""

    bos_id: int | None
    eos_id: int
    unknown_id: int
    add_bos: bool
    add_eos: bool
    add_space: bool
    model_type: int = UNIGRAM
    escapes_spaces: bool = True
    worst_score: float | None = None
    """A score that no token may be worse than: text without a token costs 10 more than the worst one."""


_KINDS = {
    "llama": _Kind(1, 2, 0, add_bos=True, add_eos=False, add_space=True, model_type=BPE),
    "t5": _Kind(None, 1, 2, add_bos=False, add_eos=True, add_space=True),
    "plamo2": _Kind(1, 2, 0, False, False, add_space=False, escapes_spaces=False, worst_score=-990.0),
}


def sentencepiece_from_gguf(metadata: Mapping[str, Any], source: str) -> SentencepieceTokenizer:
    """The tokenizer. What the file does not say is as in llama.cpp: BOS and EOS are the tokens 1 and 2, say.

    Args:
        metadata: as `gguf_metadata` returns it; its `tokenizer.ggml.model` is `llama`, `t5` or `plamo2`.
        source: the name of the file, for messages.

    Raises:
        TokenizerError: the vocabulary is malformed.
    """
    kind = _KINDS[metadata[f"{PREFIX}model"]]
    vocabulary = read_vocabulary(metadata, source, kind.bos_id, kind.eos_id, kind.unknown_id)
    adds_space = bool(read_flag(metadata, "add_space_prefix", kind.add_space, source))
    pieces = _pieces(vocabulary, read_scores(metadata, len(vocabulary.tokens), source))
    unknown_id = _unknown_id(vocabulary)
    if unknown_id is None:  # sentencepiece wants one
        unknown_id = len(pieces)
        pieces.append(Piece(NO_PIECE, 0, UNKNOWN))
    else:
        pieces.kinds[unknown_id] = UNKNOWN
    if kind.worst_score is not None:
        pieces.append(Piece(f"{NO_PIECE}{len(pieces)}", kind.worst_score, NORMAL))
    for name in _missing_bytes(pieces):
        pieces.append(Piece(name, 0, BYTE))
    charsmap = _charsmap(metadata, source)
    drops_spaces = bool(read_flag(metadata, "remove_extra_whitespaces", False, source))
    special = vocabulary.special
    proto = write_model_proto(
        pieces,
        specials=(
            pieces.texts[unknown_id],
            _control_piece(vocabulary, special.bos_id),
            _control_piece(vocabulary, special.eos_id),
        ),
        byte_fallback=BYTE in pieces.kinds,
        add_dummy_prefix=adds_space,
        remove_extra_whitespaces=drops_spaces,
        model_type=kind.model_type,
        charsmap=charsmap,
        escape_whitespaces=kind.escapes_spaces,
    )
    return SentencepieceTokenizer(
        proto,
        source,
        replace(
            special,
            add_bos=kind.add_bos if special.add_bos is None else special.add_bos,
            add_eos=kind.add_eos if special.add_eos is None else special.add_eos,
        ),
        names=_names(metadata, vocabulary, adds_space),
        spellings=vocabulary.tokens,
        escapes_spaces=kind.escapes_spaces,
        rewriting=(charsmap, drops_spaces),
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
    if math.isnan(sum(scores)) and any(map(math.isnan, scores)):
        token_id = next(i for i, score in enumerate(scores) if math.isnan(score))
        raise TokenizerError(f"{source}: token {token_id} of the vocabulary has the impossible score nan")
    if min(scores) >= -_MAX_SCORE and max(scores) <= _MAX_SCORE:
        return scores  # nearly always
    return [max(-_MAX_SCORE, min(_MAX_SCORE, score)) for score in scores]


def _charsmap(metadata: Mapping[str, Any], source: str) -> bytes:
    """How text is normalised."""
    if f"{PREFIX}precompiled_charsmap" not in metadata:
        return b""
    return bytes(value & 0xFF for value in read_column(metadata, "precompiled_charsmap", int, source))


def _pieces(vocabulary: GgufVocabulary, scores: list[float]) -> Pieces:
    """The pieces as sentencepiece has them: with its sign for spaces, and none of the kind unknown."""
    texts, kinds, ids = [*vocabulary.spellings], vocabulary.kinds, vocabulary.ids
    user_defined = vocabulary.of_kind(USER_DEFINED)
    for token_id in user_defined:
        texts[token_id] = texts[token_id].replace(" ", _SPACE)
    taken = {texts[token_id]: token_id for token_id in reversed(user_defined)}
    pieces = Pieces(texts, [*scores], [*kinds])
    bytes_named = {ids[name] for name in _BYTE_NAMES if name in ids} if BYTE in kinds else set()
    # Most of a vocabulary is as sentencepiece wants it: only these are looked at.
    odd = {*bytes_named, *user_defined, *vocabulary.of_kind(UNKNOWN, BYTE)}
    odd.update(ids[name] for name in taken if name in ids)
    if "\0" in "".join(texts):
        odd.update(token_id for token_id, text in enumerate(texts) if "\0" in text)
    for token_id in sorted(odd):
        text, kind = texts[token_id], kinds[token_id]
        if token_id in bytes_named:
            pieces.kinds[token_id] = BYTE
        elif taken.get(text, token_id) != token_id or "\0" in text:
            # The token with real spaces comes first; and sentencepiece takes no piece with a zero.
            pieces[token_id] = Piece(f"{NO_PIECE}{token_id}", 0, UNUSED)
        elif kind == UNKNOWN:
            pieces.kinds[token_id] = CONTROL
        elif kind == BYTE:
            pieces.kinds[token_id] = NORMAL
    return pieces


def _missing_bytes(pieces: Pieces) -> list[str]:
    """The names of the bytes that a vocabulary lacks, if it has others: sentencepiece wants all of them."""
    there = {text for text, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind == BYTE}
    return [name for name in _BYTE_NAMES if name not in there] if there else []


def _unknown_id(vocabulary: GgufVocabulary) -> int | None:
    """The token for text that has no other, unless that is one with a text."""
    named = [] if vocabulary.unknown_id is None else [vocabulary.unknown_id]
    candidates = (*named, *vocabulary.of_kind(UNKNOWN), 0)
    return next((i for i in candidates if vocabulary.kinds[i] in (UNKNOWN, CONTROL)), None)


def _names(metadata: Mapping[str, Any], vocabulary: GgufVocabulary, adds_space: bool) -> TokenNames:
    control = {vocabulary.spellings[i]: i for i in vocabulary.of_kind(CONTROL, UNKNOWN)}
    user_defined = {vocabulary.spellings[i]: i for i in vocabulary.of_kind(USER_DEFINED)}
    strips_left, strips_right = stripping_names(metadata, {**control, **user_defined})
    ids = control | user_defined
    # Sentencepiece finds these by itself; but it puts no space before the text after them, as llama.cpp does.
    found_here = adds_space or strips_left or strips_right
    always = user_defined | {name.replace(_SPACE, " "): i for name, i in user_defined.items()} if found_here else {}
    return TokenNames(
        control,
        always,
        frozenset(ids[name] for name in strips_left),
        frozenset(ids[name] for name in strips_right),
    )


def _control_piece(vocabulary: GgufVocabulary, token_id: int | None) -> str | None:
    is_control = token_id is not None and vocabulary.kinds[token_id] == CONTROL
    return vocabulary.spellings[token_id] if token_id is not None and is_control else None
