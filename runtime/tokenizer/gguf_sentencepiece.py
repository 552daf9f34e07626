"""Rebuilds a sentencepiece tokenizer from the vocabulary inside a GGUF file.

A GGUF file of the kind `llama` has the pieces, scores and kinds of a sentencepiece model in the order of their ids. So
the model can be written again, and it gives the same ids.
"""

from collections.abc import Mapping
from typing import Any

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_vocabulary import (
    BYTE,
    CONTROL,
    UNKNOWN,
    Vocabulary,
    check_lengths,
    read_column,
    read_flag,
    read_vocabulary,
)
from mlxr.runtime.tokenizer.model_proto import Piece, write_model_proto
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer

_MAX_SCORE = 3e38  # the range of float32, which a model file uses


def sentencepiece_from_gguf(metadata: Mapping[str, Any], source: str) -> SentencepieceTokenizer:
    """The tokenizer. If the file does not name BOS and EOS, they are `<s>` and `</s>`, if the vocabulary has these.

    Args:
        metadata: as `gguf_metadata` returns it.
        source: the name of the file, for messages.

    Raises:
        TokenizerError: the vocabulary is malformed.
    """
    vocabulary = read_vocabulary(metadata, source)
    scores = read_column(metadata, "scores", (int, float), source)
    check_lengths(source, tokens=vocabulary.tokens, scores=scores)
    for token_id, score in enumerate(scores):
        if not abs(score) < _MAX_SCORE:
            raise TokenizerError(f"{source}: token {token_id} of the vocabulary has the impossible score {score}")
    unknown = vocabulary.of_kind(UNKNOWN)
    if len(unknown) != 1:
        raise TokenizerError(f"{source}: the vocabulary has {len(unknown)} unknown tokens, expected one")
    special = vocabulary.special
    proto = write_model_proto(
        [Piece(*row) for row in zip(vocabulary.tokens, scores, vocabulary.kinds, strict=True)],
        specials=(
            vocabulary.tokens[unknown[0]],
            _control_piece(vocabulary, special.bos_id),
            _control_piece(vocabulary, special.eos_id),
        ),
        byte_fallback=BYTE in vocabulary.kinds,
        add_dummy_prefix=bool(read_flag(metadata, "add_space_prefix", True, source)),
        remove_extra_whitespaces=bool(read_flag(metadata, "remove_extra_whitespaces", False, source)),
    )
    return SentencepieceTokenizer(proto, source, special)


def _control_piece(vocabulary: Vocabulary, token_id: int | None) -> str | None:
    is_control = token_id is not None and vocabulary.kinds[token_id] == CONTROL
    return vocabulary.tokens[token_id] if token_id is not None and is_control else None
