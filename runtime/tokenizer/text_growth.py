"""How much longer a tokenizer may make a text, from the steps of its files: a stranger's steps may ask for all memory.

Libraries end the process when there is no memory, so a bound is needed before they get the text. Each step of a
normalizer, pre-tokenizer or decoder multiplies the bytes of a text by a factor that is known from the step alone; the
factors of steps that real tokenizers have are small, and multiply to at most some hundreds.
"""

import base64
import binascii
import json
import re
import struct
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.try_steps import try_steps

MOST_BYTES = 256 << 20
"""What a text may become. The library takes some 17 bytes for each of them."""
_MOST_OF_TOKEN = 64 << 10
"""Bytes that decoding may make of a token, where its steps make it longer."""
_PARTS = ("normalizers", "pretokenizers", "decoders")
_FIXED = {
    "NFC": 3.0,  # U+1D160
    "NFD": 3.0,  # U+0390
    "NFKC": 11.0,  # U+FDFA
    "NFKD": 11.0,
    "Lowercase": 1.5,  # U+023A
    "BertNormalizer": 7.5,  # all of it: spaces around ideographs, accents, lower case
    "ByteLevel": 2.0,
}
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7]")
_KEYS = ("normalizer", "pre_tokenizer", "decoder", "added_tokens")
_BEGINS = re.compile(rf'"({"|".join(_KEYS)})"\s*:\s*(?=[\[{{])')


def growth(part: Mapping[str, Any] | None, source: str) -> float:
    """Most bytes that a part of a tokenizer, as tokenizer.json writes it, makes of each byte of a text; at least 1.

    Args:
        part: a normalizer, a pre-tokenizer or a decoder, or a sequence of them; None: there is none.
        source: the file, for messages.

    Raises:
        TokenizerError: a map of characters whose sizes are false.
    """
    return reduce(lambda product, step: product * max(1.0, _factor(step, source)), _flat(part), 1.0)


def check_file(data: bytes, source: str) -> None:
    """Refuses a tokenizer.json that would ask for too much memory while it is loaded, or whose steps fail when tried.

    Args:
        data: its content.
        source: the file, for messages.

    Raises:
        TokenizerError: its steps make a text much longer, a map of characters has false sizes, or see `try_steps`.
    """
    found: dict[str, list[Any]] = {key: [] for key in _KEYS}
    for key, value in _values(data):
        found[key].append(value)
    factor = 1.0
    for key in ("normalizer", "pre_tokenizer"):
        factor *= max((growth(part, source) for part in found[key] if isinstance(part, dict)), default=1.0)
    added = sum(len(json.dumps(tokens)) for tokens in found["added_tokens"])  # normalised when they are loaded
    check_growth(max(added, 4096), factor, f"{source}: its own tokens")
    for part in found["decoder"]:
        if isinstance(part, dict):
            check_decoder(part, 4, source)  # no vocabulary's longest token is shorter
    try_steps([(key, part) for key in _KEYS[:3] for part in found[key]], source)


def check_growth(num_bytes: int, factor: float, what: str = "the text") -> None:
    """Refuses a text that a tokenizer could make too long.

    Args:
        num_bytes: of the text, in UTF-8.
        factor: what `growth` says of the tokenizer.
        what: the text, for messages.

    Raises:
        TokenizerError: it could become more than 256 MiB.
    """
    if num_bytes * factor > MOST_BYTES:
        raise TokenizerError(
            f"{what}: {num_bytes} bytes, of which the tokenizer's own steps could make {num_bytes * factor:.3g}, and "
            f"at most {MOST_BYTES} are taken; send less, or use the tokenizer of the model's publisher"
        )


def check_decoder(decoder: Mapping[str, Any] | None, longest: int, source: str) -> None:
    """Refuses a decoder that could make very long texts of tokens.

    Args:
        decoder: as tokenizer.json writes it; None: there is none.
        longest: bytes of the longest token of the vocabulary.
        source: the file, for messages.

    Raises:
        TokenizerError: it could.
    """
    factor = growth(decoder, source)
    if factor > 2 and longest * factor > _MOST_OF_TOKEN:
        raise TokenizerError(
            f"{source}: its decoder could make {longest * factor:.3g} bytes of a token, and at most {_MOST_OF_TOKEN} "
            "are taken; use the tokenizer of the model's publisher"
        )


def longest_replacement(charsmap: bytes, source: str) -> int:
    """Most bytes that a map of characters, as sentencepiece compiles it, puts in a character's place.

    It is a size, a trie of that size, and texts that end in zero bytes.

    Raises:
        TokenizerError: the trie is longer than the map.
    """
    size = struct.unpack_from("<I", charsmap)[0] if len(charsmap) >= 4 else 0
    if len(charsmap) < 4 or size % 4 or size > len(charsmap) - 4:
        raise TokenizerError(
            f"{source}: its precompiled_charsmap of {len(charsmap)} bytes says that {size} of them are a trie; get the "
            "file again"
        )
    return max(map(len, charsmap[4 + size :].split(b"\0")))


def _flat(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    steps = next((part[key] for key in _PARTS if isinstance(part.get(key), list)), None)
    if steps is None:
        yield part
        return
    for step in steps:
        yield from _flat(step)


def _factor(step: Mapping[str, Any], source: str) -> float:
    kind = step.get("type")
    if kind == "Replace":
        pattern, content = step.get("pattern"), len(str(step.get("content", "")).encode("utf-8", "surrogatepass"))
        old = pattern.get("String") if isinstance(pattern, dict) else None
        return (
            content / len(old.encode("utf-8", "surrogatepass")) if old else 1.0 + content
        )  # may match nothing, anywhere
    if kind == "BPEDecoder":
        return 1.0 if step.get("suffix") else 2.0
    if kind == "Prepend":
        return 1.0 + len(str(step.get("prepend", "")).encode("utf-8", "surrogatepass"))
    if kind == "Metaspace":
        return float(len(str(step.get("replacement", "")).encode("utf-8", "surrogatepass")))
    if kind == "Precompiled":
        try:
            charsmap = base64.b64decode(str(step.get("precompiled_charsmap", "")))
        except (binascii.Error, ValueError) as error:
            raise TokenizerError(f"{source}: its precompiled_charsmap is not base64: {error}") from error
        return float(longest_replacement(charsmap, source)) if charsmap else 1.0
    return _FIXED.get(str(kind), 1.0)


def _values(data: bytes) -> Iterator[tuple[str, Any]]:
    """Whatever stands anywhere in the JSON under the keys that matter; a large vocabulary is not read for that."""
    if _ESCAPED_ASCII.search(data):  # a key may be written in another way
        found: list[tuple[str, Any]] = []

        def noted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found.extend((key, value) for key, value in pairs if key in _KEYS)
            return dict(pairs)

        try:
            json.loads(data, object_pairs_hook=noted)
        except (ValueError, RecursionError):
            return  # the library says what is wrong
        yield from found
        return
    text, decoder = data.decode("utf-8", "replace"), json.JSONDecoder()
    for match in _BEGINS.finditer(text):
        try:
            value, _ = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue
        yield match[1], value
