"""The tokens of a text that continues another one, where names of control tokens mean these tokens."""

from collections.abc import Sequence

from mlxr.runtime.tokenizer.tokenizer import Tokenizer

_BEFORE = ("\n", "a", ".", "0", " ")
"""Texts to encode another text after, where the tokenizer treats the start of a text in its own way."""


def encode_inside(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of `text` inside another text: what some tokenizers put before the first word is left out."""
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    if _spells(tokenizer, ids, text):
        return ids
    for before in _BEFORE:
        first = tokenizer.encode(before, add_special=False)
        both = tokenizer.encode(before + text, add_special=False, parse_special=True)
        inside = both[len(first) :]
        if both[: len(first)] == first and _spells(tokenizer, inside, text):
            return inside
    return ids  # such as text that the tokenizer normalises


def _spells(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> bool:
    control = tokenizer.control_ids
    parts = [tokenizer.token_text(i).encode() if i in control else tokenizer.bytes_of(i) for i in ids]
    return b"".join(parts) == text.encode()
