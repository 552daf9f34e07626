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
    if kind == "llama":
        from mlxr.runtime.tokenizer.gguf_sentencepiece import sentencepiece_from_gguf

        return sentencepiece_from_gguf(metadata, source)
    if kind == "gpt2":
        from mlxr.runtime.tokenizer.gguf_byte_level import byte_level_from_gguf

        return byte_level_from_gguf(metadata, source)
    raise TokenizerError(
        f"{source}: its tokenizer is of the kind {kind!r:.60}, expected 'llama' (sentencepiece) or 'gpt2' (byte-level "
        "BPE). With the model's own tokenizer.json it works: name its folder with --tokenizer"
    )
