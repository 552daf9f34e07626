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
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    read_column,
    read_vocabulary,
)
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer, library_errors
from mlxr.runtime.tokenizer.pre_tokenizers import PreTokenizer, pre_tokenizer
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
    return LibraryTokenizer(library, source, special, spellings=vocabulary.tokens)


def _build(vocabulary: Vocabulary, merges: list[tuple[str, str]], split: PreTokenizer) -> Library:
    ids = {token: token_id for token_id, token in enumerate(vocabulary.spellings)}
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
            AddedToken(token, special=kind != USER_DEFINED, normalized=False)
            for token, kind in zip(vocabulary.spellings, vocabulary.kinds, strict=True)
            if kind in (CONTROL, UNKNOWN, USER_DEFINED)
        ]
    )
    return library


def _merges(metadata: Mapping[str, Any], vocabulary: Vocabulary, source: str) -> list[tuple[str, str]]:
    """The merges in order, each once. Those that use or make a token that there is not have no effect."""
    tokens = set(vocabulary.spellings)
    merges: dict[tuple[str, str], None] = {}
    for merge in read_column(metadata, "merges", str, source):
        at = merge.find(" ", 1)  # a token may begin with a space
        left, right = merge[:at], merge[at + 1 :]
        if at > 0 and left in tokens and right in tokens and left + right in tokens:
            merges[left, right] = None
    return [*merges]
