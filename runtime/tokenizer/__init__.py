"""Converts text to token ids and back, by sentencepiece or the `tokenizers` library, and renders chat templates."""

from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.stream_decoder import StreamDecoder
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens, Tokenizer

__all__ = ["SpecialTokens", "StreamDecoder", "Tokenizer", "load_tokenizer"]
