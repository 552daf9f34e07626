"""Rebuilds a byte-level BPE tokenizer from the vocabulary inside a GGUF file.

A GGUF file of the kind `gpt2` has the tokens, their kinds, the merges in order, and the name of the expressions that
split text into words. This is everything that a tokenizer of the `tokenizers` library needs.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Library
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_vocabulary import (
    CONTROL,
    PREFIX,
    USER_DEFINED,
    Vocabulary,
    read_column,
    read_vocabulary,
)
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer, library_errors
from mlxr.runtime.tokenizer.pre_tokenizers import PreTokenizer, pre_tokenizer
from mlxr.runtime.tokenizer.token_bytes import UTF8_BYTES, byte_alphabet
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens


def byte_level_from_gguf(metadata: Mapping[str, Any], source: str) -> LibraryTokenizer:
    """The tokenizer. If the file does not say whether texts get a BOS, its pre-tokenizer decides.

    Args:
        metadata: as `gguf_metadata` returns it.
        source: the name of the file, for messages.

    Raises:
        TokenizerError: the vocabulary is malformed, or names a pre-tokenizer that is not known.
    """
    vocabulary = read_vocabulary(metadata, source)
    name = metadata.get(f"{PREFIX}pre", "default")
    if not isinstance(name, str):
        raise TokenizerError(f"{source}: `{PREFIX}pre` is {name!r:.60}, expected a name")
    split = pre_tokenizer(name, source)
    merges = _merges(metadata, vocabulary, source)
    with library_errors(source):
        library = _build(vocabulary, merges, split)
    special = vocabulary.special
    add_bos = split.add_bos if special.add_bos is None else special.add_bos
    special = SpecialTokens(special.bos_id, special.eos_id, special.end_ids, add_bos, bool(special.add_eos))
    return LibraryTokenizer(library, source, special, vocab_size=len(vocabulary.tokens))


def _build(vocabulary: Vocabulary, merges: list[tuple[str, str]], split: PreTokenizer) -> Library:
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    library = Library(BPE(vocab=ids, merges=merges, ignore_merges=split.ignore_merges))
    if split.composed:
        library.normalizer = NFC()
    library.pre_tokenizer = Sequence(
        [
            *(Split(Regex(pattern), "isolated") for pattern in split.patterns),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = ByteLevelDecoder()
    library.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    return library


def _merges(metadata: Mapping[str, Any], vocabulary: Vocabulary, source: str) -> list[tuple[str, str]]:
    """The merges in order. Only at its start could half of a merge have a space, and byte-level tokens have none."""
    tokens = set(vocabulary.tokens)
    merges = []
    for index, merge in enumerate(read_column(metadata, "merges", str, source)):
        left, space, right = merge.partition(" ")
        if not (space and left in tokens and right in tokens and left + right in tokens):
            raise TokenizerError(
                f"{source}: merge {index} of the vocabulary is {merge!a:.80}; expected two tokens and a space between "
                "them, which make a third"
            )
        merges.append((left, right))
    missing = [
        character for character, byte in byte_alphabet().items() if byte in UTF8_BYTES and character not in tokens
    ]
    if missing:
        raise TokenizerError(f"{source}: the vocabulary has no token for {len(missing)} bytes: {missing[:8]}")
    return merges
