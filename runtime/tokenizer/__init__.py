"""Text to token ids and back, by sentencepiece."""

from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.stream_decoder import StreamDecoder
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer"]
