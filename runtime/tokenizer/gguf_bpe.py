"""Rebuilds a BPE tokenizer from the vocabulary inside a GGUF file.

A GGUF file of the kind `gpt2` has the tokens, their kinds, the merges in order, and the name of the expressions that
split text into words. This is everything that a tokenizer of the `tokenizers` library needs. Most spell bytes with
letters; some, and files of the kind `gemma4`, spell characters as they are, with a token for each byte beside them.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_vocabulary import (
    CONTROL,
    PREFIX,
    UNKNOWN,
    USER_DEFINED,
    GgufVocabulary,
    read_column,
    read_flag,
    read_vocabulary,
    stripping_names,
)
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer, library_errors
from mlxr.runtime.tokenizer.pre_tokenizers import Alphabet, PreTokenizer, pre_tokenizer

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def bpe_from_gguf(metadata: Mapping[str, Any], source: str) -> LibraryTokenizer:
    """The tokenizer. If the file does not say whether texts get a BOS, its pre-tokenizer decides.

    Args:
        metadata: as `gguf_metadata` returns it; its `tokenizer.ggml.model` is `gpt2`, `gemma4` or `whitespace`.
        source: the name of the file, for messages.

    Raises:
        TokenizerError: the vocabulary is malformed, or names a pre-tokenizer that is not known.
    """
    kind = metadata[f"{PREFIX}model"]
    name = metadata.get(f"{PREFIX}pre", "default") if kind == "gpt2" else kind
    if not isinstance(name, str):
        raise TokenizerError(f"{source}: `{PREFIX}pre` is {name!r:.60}, expected a name")
    split = pre_tokenizer(name or "default", source)
    vocabulary = read_vocabulary(metadata, source)
    merges = read_column(metadata, "merges", str, source)
    if split.alphabet is Alphabet.WORDS:
        split = replace(split, lowercase=bool(read_flag(metadata, "normalizer.lowercase", False, source)))
    with library_errors(source):
        library = _build(metadata, vocabulary, merges, split)
    special = vocabulary.special
    add_bos = split.add_bos if special.add_bos is None or split.always_bos else special.add_bos
    special = replace(special, add_bos=add_bos, add_eos=bool(special.add_eos))
    return LibraryTokenizer(library, source, special, spellings=vocabulary.tokens, ids=vocabulary.ids)


def _build(metadata: Mapping[str, Any], vocabulary: GgufVocabulary, merges: list[str], split: PreTokenizer) -> Library:
    in_bytes = split.alphabet is Alphabet.BYTES
    library = Library(_model(vocabulary.ids, merges, split.ignore_merges, byte_fallback=not in_bytes))
    words = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    if split.composed:
        library.normalizer = normalizers.NFC()
    if in_bytes:
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [*words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        library.decoder = decoders.ByteLevel()
    elif split.alphabet is Alphabet.CHARACTERS:
        library.normalizer = normalizers.Replace(" ", _SPACE)
        library.pre_tokenizer = pre_tokenizers.Sequence(words)
        library.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        library.normalizer = normalizers.Lowercase() if split.lowercase else None
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    added = {i: vocabulary.spellings[i] for i in vocabulary.of_kind(CONTROL, UNKNOWN, USER_DEFINED)}
    strips_left, strips_right = stripping_names(metadata, added.values())
    library.add_tokens(
        [
            AddedToken(
                token,
                special=vocabulary.kinds[token_id] != USER_DEFINED,
                normalized=False,
                lstrip=token in strips_left,
                rstrip=token in strips_right,
            )
            for token_id, token in added.items()
        ]
    )
    return library


def _model(ids: dict[str, int], merges: list[str], ignore_merges: bool, byte_fallback: bool) -> BPE:
    """The library's model. Merges that use or make a token that there is not have no effect, nor the second of two."""

    def model(pairs: list[tuple[str, str]]) -> BPE:
        return BPE(vocab=ids, merges=pairs, ignore_merges=ignore_merges, byte_fallback=byte_fallback)

    parts = [merge.split(" ") for merge in merges]
    if {*map(len, parts)} == {2} and len({*merges}) == len(merges):
        with suppress(Exception):  # nearly never: the library looks for the tokens itself, and sooner than we would
            return model([(left, right) for left, right in parts])
    known: dict[tuple[str, str], None] = {}
    for merge in merges:
        at = merge.find(" ", 1)  # a token may begin with a space
        left, right = merge[:at], merge[at + 1 :]
        if at > 0 and left in ids and right in ids and left + right in ids:
            known[left, right] = None
    return model([*known])
