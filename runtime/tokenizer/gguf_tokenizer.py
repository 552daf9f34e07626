"""Makes the tokenizer in a GGUF file's metadata, by its kind (`tokenizer.ggml.model`)."""

from collections.abc import Mapping
from typing import Any

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_vocabulary import PREFIX
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

# ruff: noqa: PLC0415 (each kind needs one of two libraries)


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer in a GGUF file's metadata.

    Args:
        metadata: as `gguf_metadata` returns it.
        source: the name of the file, for messages.

    Raises:
        TokenizerError: the vocabulary is malformed, or of a kind that is not supported.
    """
    kind = metadata.get(f"{PREFIX}model")
    if kind in ("llama", "t5", "plamo2"):
        from mlxr.runtime.tokenizer.gguf_sentencepiece import sentencepiece_from_gguf

        return sentencepiece_from_gguf(metadata, source)
    if kind in ("gpt2", "gemma4", "whitespace"):
        from mlxr.runtime.tokenizer.gguf_bpe import bpe_from_gguf

        return bpe_from_gguf(metadata, source)
    if kind == "bert":
        from mlxr.runtime.tokenizer.gguf_wordpiece import wordpiece_from_gguf

        return wordpiece_from_gguf(metadata, source)
    raise TokenizerError(
        f"{source}: its tokenizer is of the kind {kind!r:.60}, which is not supported; supported are 'llama', 't5', "
        "'plamo2' (sentencepiece), 'gpt2', 'gemma4', 'whitespace' (BPE) and 'bert' (WordPiece). With a tokenizer.json "
        "of the model it works: name its folder with --tokenizer"
    )
