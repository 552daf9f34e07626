"""Finds how much text a token of the `tokenizers` library can stand for, from the steps of its tokenizer."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers

from mlxr.runtime.tokenizer.token_bytes import UTF8_BYTES, byte_alphabet
from mlxr.runtime.tokenizer.token_span import TokenSpan

_COMPOSED = 4
"""Most characters that form NFC turns into one: no character has a longer canonical decomposition."""


def library_span(library: tokenizers.Tokenizer) -> TokenSpan | None:
    """The span of a tokenizer of the `tokenizers` library: of BPE that has a token for every byte.

    None for tokenizers that may leave out text: other kinds of models, and unknown steps.
    """
    model = library.model
    if not isinstance(model, tokenizers.models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    splits = _steps(library.pre_tokenizer, "pretokenizers")
    rewrites = _steps(library.normalizer, "normalizers")
    vocabulary = library.get_vocab(with_added_tokens=False)
    if any(step["type"] == "ByteLevel" for step in splits):
        spelled = [character for character, byte in byte_alphabet().items() if byte in UTF8_BYTES]
    else:
        spelled = [f"<0x{byte:02X}>" for byte in range(256)] if model.byte_fallback else [""]
    shrinking = 1
    for step in rewrites:
        shrinking *= _most_shrunk(step)
    if not (shrinking and all(map(_keeps_text, splits)) and all(byte in vocabulary for byte in spelled)):
        return None
    longest = max(map(len, vocabulary)) * shrinking
    added = library.get_added_tokens_decoder().values()
    for token in added:
        text = token.content
        if token.normalized and library.normalizer is not None:
            text = library.normalizer.normalize_str(text)
        longest = max(longest, len(text) * shrinking)
    drops = any(token.lstrip or token.rstrip for token in added) or any(step["type"] == "Strip" for step in rewrites)
    return TokenSpan(longest, drops)


def _steps(part: Any, key: str) -> list[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, as tokenizer.json writes them."""
    return [] if part is None else list(_flat(json.loads(part.__getstate__()), key))


def _flat(state: Mapping[str, Any], key: str) -> Iterable[Mapping[str, Any]]:
    if state["type"] != "Sequence":
        yield state
        return
    for step in state[key]:
        yield from _flat(step, key)


def _most_shrunk(step: Mapping[str, Any]) -> int:
    """Most characters that a normalizer turns into one; 0 if that is not known."""
    kind, pattern = step["type"], step.get("pattern", {})
    if kind in ("Prepend", "Strip"):
        return 1
    if kind == "NFC":
        return _COMPOSED
    keeps_length = kind == "Replace" and 0 < len(pattern.get("String", "")) <= len(step["content"])
    return int(keeps_length)


def _keeps_text(step: Mapping[str, Any]) -> bool:
    """Whether a pre-tokenizer is known to leave out nothing."""
    kind = step["type"]
    return kind in ("ByteLevel", "Metaspace", "Digits") or (
        kind in ("Split", "Punctuation") and step.get("behavior", "Removed") != "Removed"
    )
