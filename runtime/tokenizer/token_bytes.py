"""Finds the bytes that a token of the `tokenizers` library stands for, by the steps of its decoder.

The library only decodes whole sequences. But its decoders for language models consist of a few steps that treat each
token by itself, so the bytes of a token do not depend on its neighbours.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlxr.compiler.errors import TokenizerError

UTF8_BYTES = frozenset([*range(0xC0), *range(0xC2, 0xF5)])
"""The bytes that occur in UTF-8 text."""
_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")
_SUPPORTED = "ByteLevel, Metaspace, Replace, ByteFallback, Fuse and Strip (after Fuse)"


@dataclass(frozen=True)
class DecodingRule:
    """How the tokens of a vocabulary become bytes.

    Attributes:
        bytes_of: the bytes of a token by its spelling in the vocabulary.
        bytes_of_added: likewise, of a token that was added to the vocabulary and is not special.
        num_stripped_spaces: how many spaces decoding removes at the very start of a text.
    """

    bytes_of: Callable[[str], bytes]
    bytes_of_added: Callable[[str], bytes]
    num_stripped_spaces: int = 0


def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies.

    Source: GPT-2's encoder. Printable Latin-1 characters stand for themselves, those from U+0100 on for other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


def byte_level(alphabet: Mapping[str, int] | None = None) -> Callable[[str], bytes]:
    """The bytes of a byte-level token; a token with characters outside the alphabet stands for its own text."""
    known = alphabet or byte_alphabet()

    def bytes_of(token: str) -> bytes:
        try:
            return bytes([known[character] for character in token])
        except KeyError:
            return _encoded(token)

    return bytes_of


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # bytes of GGUF files that are not UTF-8


def decoding_rule(decoder: Mapping[str, Any] | None, source: str) -> DecodingRule:
    """The rule of a decoder as tokenizer.json writes it.

    Raises:
        TokenizerError: it has a step that does not treat tokens one by one.
    """
    if decoder is None:
        raise TokenizerError(f"{source}: has no decoder, so its tokens cannot become text; expected {_SUPPORTED}")
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    replacements: list[tuple[str, str]] = []
    fused = is_byte_level = has_byte_tokens = False
    num_stripped_spaces = 0
    for step in steps:
        kind = step["type"]
        pattern = step.get("pattern", {})
        if kind == "ByteLevel":
            is_byte_level = True
        elif kind == "ByteFallback":
            has_byte_tokens = True
        elif kind == "Fuse":
            fused = True
        elif kind == "Metaspace":
            replacements.append((step["replacement"], " "))
            num_stripped_spaces = int(step.get("prepend_scheme", "always") != "never")
        elif kind == "Replace" and "String" in pattern:
            replacements.append((pattern["String"], step["content"]))
        elif kind == "Strip" and fused and step["content"] == " " and not step["stop"]:
            num_stripped_spaces = step["start"]
        else:
            raise TokenizerError(f"{source}: its decoder has the step {step!r:.80}; supported are {_SUPPORTED}")
    spelled = byte_level() if is_byte_level else _encoded

    def bytes_of(token: str) -> bytes:
        if has_byte_tokens and _BYTE_TOKEN.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        for old, new in replacements:
            token = token.replace(old, new)
        return spelled(token)

    # The library also takes the letters of added tokens for bytes; but they stand for themselves in the text.
    return DecodingRule(bytes_of, _encoded if is_byte_level else bytes_of, num_stripped_spaces)
