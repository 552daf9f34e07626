"""Finds the bytes that a token of the `tokenizers` library stands for, by the steps of its decoder.

The library only decodes whole sequences. But its decoders for language models consist of a few steps that treat each
token by itself, so the bytes of a token do not depend on its neighbours.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, decoders

from mlxr.compiler.errors import TokenizerError

UTF8_BYTES = frozenset([*range(0xC0), *range(0xC2, 0xF5)])
"""The bytes that occur in UTF-8 text."""
_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")
_SUPPORTED = "ByteLevel, Metaspace, WordPiece, BPEDecoder, Replace, ByteFallback, Fuse and Strip"
_CLEANED = (  # what decoders of WordPiece tidy up, token by token
    *((f" {sign}", sign) for sign in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m")),
    (" do not", " don't"),
    *((f" {end}", end) for end in ("'s", "'ve", "'re")),
)
_BORDER = "\udcff"  # what decoding with `surrogateescape` makes of a byte 0xFF, which is in no text
_PART = re.compile("[\ud800-\udfff]")
_Step = Callable[[str], str]


@dataclass(frozen=True)
class DecodingRule:
    """How the tokens of a vocabulary become bytes.

    Attributes:
        bytes_of: the bytes of a token by its spelling in the vocabulary.
        first_bytes_of: likewise, of the first token of a text.
        bytes_of_added: likewise, of a token that was added to the vocabulary and is not special; None: as other tokens.
        num_stripped_spaces: how many spaces decoding removes at the very start of a text.
        drops_last_space: whether it leaves out a space at the end of the last token.
        is_byte_level: whether `byte_level_texts` has the texts of tokens that were not added.
    """

    bytes_of: Callable[[str], bytes]
    first_bytes_of: Callable[[str], bytes]
    bytes_of_added: Callable[[str], bytes] | None
    num_stripped_spaces: int = 0
    drops_last_space: bool = False
    is_byte_level: bool = False


def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies.

    Source: GPT-2's encoder. Printable Latin-1 characters stand for themselves, those from U+0100 on for other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


def byte_level(alphabet: Mapping[str, int] | None = None) -> Callable[[str], bytes]:
    """The bytes of a byte-level token; a token with characters outside the alphabet stands for its own text."""
    known = {ord(character): byte for character, byte in (alphabet or byte_alphabet()).items()}

    def bytes_of(token: str) -> bytes:
        try:
            return codecs.charmap_encode(token, "strict", known)[0]
        except UnicodeEncodeError:
            return _encoded(token)

    return bytes_of


def byte_level_texts(spellings: Sequence[str]) -> list[str | None]:
    """The texts of byte-level tokens; None: not whole characters. All at once they take a third of the time."""
    codes = np.frombuffer("\n".join(spellings).encode("utf-16-le", "surrogatepass"), np.uint16)
    joined = _byte_table()[codes].tobytes().decode("utf-8", "surrogateescape")
    if not spellings or joined.count(_BORDER) != len(spellings) - 1:  # some have other characters, or this byte
        decoded = [(*codecs.utf_8_decode(data, "replace"), len(data)) for data in map(byte_level(), spellings)]
        return [text if num_used == size else None for text, num_used, size in decoded]
    return [text if text.isascii() or not _PART.search(text) else None for text in joined.split(_BORDER)]


@cache
def _byte_table() -> npt.NDArray[np.uint8]:
    """The byte of each character; 0xFF of all that stand for none."""
    table = np.full(1 << 16, 0xFF, np.uint8)
    for character, byte in byte_alphabet().items():
        table[ord(character)] = byte
    return table


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # bytes of GGUF files that are not UTF-8


def decoding_rule(decoder: Mapping[str, Any] | None, source: str) -> DecodingRule:
    """The rule of a decoder as tokenizer.json writes it. Without one, a space stands between tokens.

    Raises:
        TokenizerError: it has a step that does not treat tokens one by one.
    """
    if decoder is None:
        return DecodingRule(lambda token: _encoded(" " + token), _encoded, None)
    steps: list[tuple[_Step, _Step]] = []  # for most tokens, and for the first
    fused = is_byte_level = has_byte_tokens = False
    num_stripped_spaces = 0
    for step in _flat(decoder):
        kind = step["type"]
        if kind == "ByteLevel":
            is_byte_level = fused = True
        elif kind == "ByteFallback":
            has_byte_tokens = True
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused:
            if step["content"] != " " or step["stop"]:
                raise TokenizerError(f"{source}: its decoder has the step {step!r:.80} for whole texts")
            num_stripped_spaces = step["start"]
        else:
            steps.append(_step(step, source))

    def spelled(which: int) -> Callable[[str], bytes]:
        in_bytes = byte_level() if is_byte_level else _encoded
        if not steps and not has_byte_tokens:
            return in_bytes

        def bytes_of(token: str) -> bytes:
            if has_byte_tokens and _BYTE_TOKEN.fullmatch(token):
                return bytes([int(token[3:5], 16)])
            for change in steps:
                token = change[which](token)
            return in_bytes(token)

        return bytes_of

    return DecodingRule(
        spelled(0),
        spelled(1),
        # The library also takes the letters of added tokens for bytes; but they stand for themselves in the text.
        _encoded if is_byte_level else None,
        num_stripped_spaces,
        any(step["type"] == "BPEDecoder" for step in _flat(decoder)),
        is_byte_level and not steps and not has_byte_tokens,
    )


def _flat(decoder: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _flat(step)


def _step(step: Mapping[str, Any], source: str) -> tuple[_Step, _Step]:
    """What a step of a decoder makes of a token, and of the first token."""
    kind, pattern = step["type"], step.get("pattern", {})
    if kind == "Metaspace":
        space, keeps_first = step["replacement"], step.get("prepend_scheme", "always") == "never"
        every = _replacing(space, " ")
        return every, every if keeps_first else _replacing(space, "")
    if kind == "WordPiece":
        prefix, tidy = step["prefix"], _tidied if step["cleanup"] else str
        return (
            lambda token: tidy(token[len(prefix) :] if token.startswith(prefix) else " " + token),
            tidy,
        )
    if kind == "BPEDecoder":
        every = _replacing(step["suffix"], " ")
    elif kind == "Replace" and "String" in pattern:
        every = _replacing(pattern["String"], step["content"])
    elif kind == "Replace" and "Regex" in pattern:
        replace = decoders.Replace(Regex(pattern["Regex"]), step["content"])
        every = lambda token: str(replace.decode([token]))  # noqa: E731
    elif kind == "Strip":
        strip = decoders.Strip(step["content"], step["start"], step["stop"])
        every = lambda token: str(strip.decode([token]))  # noqa: E731
    else:
        raise TokenizerError(f"{source}: its decoder has the step {step!r:.80}; supported are {_SUPPORTED}")
    return every, every


def _replacing(old: str, new: str) -> _Step:
    return lambda token: token.replace(old, new)


def _tidied(token: str) -> str:
    for old, new in _CLEANED:
        token = token.replace(old, new)
    return token
