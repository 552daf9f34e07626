"""Rebuilds a WordPiece tokenizer, as BERT has it, from the vocabulary inside a GGUF file.

A GGUF file of the kind `bert` marks the tokens that begin a word with U+2581; the library marks the others with `##`.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_vocabulary import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    GgufVocabulary,
    read_column,
    read_flag,
    read_id,
    read_vocabulary,
)
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer, library_errors

_WORD = "\N{LOWER ONE EIGHTH BLOCK}"  # begins the tokens that begin a word
_CONTINUES = "##"
_CLS, _SEP, _UNKNOWN = 101, 102, 100  # where a file names none, as in BERT's own


def wordpiece_from_gguf(metadata: Mapping[str, Any], source: str) -> LibraryTokenizer:
    """The tokenizer. Every text is put between `[CLS]` and `[SEP]`.

    Args:
        metadata: as `gguf_metadata` returns it.
        source: the name of the file, for messages.

    Raises:
        TokenizerError: the vocabulary is malformed.
    """
    size = len(read_column(metadata, "tokens", str, source))
    begins = read_id(metadata, "cls_token_id", size, None, source)
    vocabulary = read_vocabulary(metadata, source, bos_id=_CLS if begins is None else begins, unknown_id=_UNKNOWN)
    cls_id = vocabulary.special.bos_id if begins is None else begins
    sep_id = read_id(metadata, "seperator_token_id", size, _SEP, source)
    if sep_id is None or cls_id is None or vocabulary.unknown_id is None or sep_id >= size:
        raise TokenizerError(f"{source}: the vocabulary names no token that begins a text, ends it, or is unknown")
    lowercase = bool(read_flag(metadata, "normalizer.lowercase", True, source))
    strips = bool(read_flag(metadata, "normalizer.strip_accents", lowercase, source))
    with library_errors(source):
        spellings = _spellings(vocabulary, (vocabulary.unknown_id, cls_id, sep_id))
        library = _build(vocabulary, spellings, vocabulary.unknown_id, (cls_id, sep_id))
        library.normalizer = normalizers.BertNormalizer(strip_accents=strips, lowercase=lowercase)
    return LibraryTokenizer(library, source, vocabulary.special, spellings=spellings)


def _spellings(vocabulary: GgufVocabulary, special: tuple[int, ...]) -> list[str]:
    """The tokens as BERT's own vocabulary has them."""
    own = {*special, *vocabulary.of_kind(CONTROL, UNKNOWN, USER_DEFINED)}
    spellings: dict[str, int] = {}
    for token_id, token in enumerate(vocabulary.spellings):
        spelling = token if token_id in own else token[1:] if token.startswith(_WORD) else _CONTINUES + token
        # A text that is there twice is a special token, too, and found by its name.
        spellings[spelling if spelling and spelling not in spellings else _CONTINUES + token] = token_id
    return [*spellings]


def _build(vocabulary: GgufVocabulary, spellings: list[str], unknown_id: int, around: tuple[int, int]) -> Library:
    special = {unknown_id, *around, *vocabulary.of_kind(CONTROL, UNKNOWN)}
    library = Library(
        models.WordPiece(
            vocab={spelling: token_id for token_id, spelling in enumerate(spellings)},
            unk_token=spellings[unknown_id],
            continuing_subword_prefix=_CONTINUES,
        )
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix=_CONTINUES)
    own = sorted(special.union(vocabulary.of_kind(USER_DEFINED)))
    library.add_tokens([AddedToken(spellings[i], special=i in special, normalized=False) for i in own])
    (cls_id, sep_id) = around
    library.post_processor = processors.BertProcessing((spellings[sep_id], sep_id), (spellings[cls_id], cls_id))
    return library
