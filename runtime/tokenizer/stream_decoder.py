"""Decodes a sequence token by token, to print text while it is generated.

Invariants: what `push` and `flush` return, joined, is `Tokenizer.decode` of all ids; a character that several tokens
spell is returned once it is complete; the work for a token does not grow with the sequence.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from mlxr.runtime.tokenizer.token_bytes import DecodingRule


class StreamDecoder(ABC):
    """Decodes one sequence. It stores at most the three bytes of an incomplete character."""

    __slots__ = ()

    @abstractmethod
    def push(self, token_id: int) -> str:
        """Text that `token_id` completes; often empty for control and byte tokens.

        Raises:
            TokenizerError: the id is outside the vocabulary; the decoder has not changed.
        """

    @property
    def table(self) -> list[str | None] | None:
        """Texts that `push` would return now, by token, as far as they are known; None: they depend on more than that.

        `push` of such a token would leave the decoder as it is. Tokens may be added to the table, but none changes.
        """
        return None

    def learn(self, token_ids: Sequence[int]) -> None:
        """Adds texts of tokens in the vocabulary to the table; not of those that are parts of characters."""
        return None

    @abstractmethod
    def copy(self) -> Self:
        """A decoder that goes on as this one would."""

    @abstractmethod
    def flush(self) -> str:
        """U+FFFD for an incomplete character, if there is one. Call it when the sequence ends."""


class TokenBytes(Protocol):
    """What a `ByteStreamDecoder` needs of its tokenizer."""

    rule: "DecodingRule"
    """How tokens become bytes."""
    texts: list[str | None]
    """Texts of tokens that are whole characters, as they become known. Not a dict: of many tokens, which are seldom in
    the CPU's cache, a list takes a third of the time."""

    def bytes_of(self, token_id: int) -> bytes:
        """The UTF-8 bytes, perhaps a part of a character, that a token stands for.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """

    def learn(self, token_ids: Sequence[int]) -> None:
        """Adds texts of tokens in the vocabulary, as far as they are whole characters."""

    def first_bytes_of(self, token_id: int) -> bytes | None:
        """Likewise, at the start of a text; None for control tokens, after which the text has not begun."""


class ByteStreamDecoder(StreamDecoder):
    """Decodes tokens that each stand for some bytes of UTF-8 text, the same bytes anywhere but at its start.

    What is not UTF-8 becomes U+FFFD, one for each longest run that could have begun a character, as in Rust's and
    Python's own decoding (Unicode, section 3.9, "maximal subpart").
    """

    __slots__ = ("_begun", "_held", "_incomplete", "_to_strip", "_tokenizer")

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._to_strip = tokenizer.rule.num_stripped_spaces
        self._incomplete = self._held = b""
        self._begun = False

    def push(self, token_id: int) -> str:
        """See `StreamDecoder`."""
        is_between, texts = self._is_between, self._tokenizer.texts
        if is_between and 0 <= token_id < len(texts) and (known := texts[token_id]) is not None:
            return known  # nearly every token; the engine has a step's time for those of all its requests
        data = self._tokenizer.bytes_of(token_id) if self._begun else self._first(token_id)
        if self._to_strip:
            data = self._stripped(data)
        if self._tokenizer.rule.drops_last_space:
            data = self._without_last_space(data)
        if self._incomplete:
            data = self._incomplete + data
        text, num_used = codecs.utf_8_decode(data, "replace")
        self._incomplete = data[num_used:]
        if is_between and not self._incomplete:
            texts[token_id] = text
        return text

    @property
    def table(self) -> list[str | None] | None:
        """See `StreamDecoder`."""
        return self._tokenizer.texts if self._is_between else None

    def learn(self, token_ids: Sequence[int]) -> None:
        """See `StreamDecoder`."""
        if self._is_between:
            self._tokenizer.learn(token_ids)

    @property
    def _is_between(self) -> bool:
        """Whether a token's text depends on the token alone, unless it begins a character."""
        return self._begun and not (self._incomplete or self._to_strip or self._tokenizer.rule.drops_last_space)

    def copy(self) -> Self:
        """See `StreamDecoder`."""
        other = type(self)(self._tokenizer)
        other._to_strip, other._begun = self._to_strip, self._begun
        other._incomplete, other._held = self._incomplete, self._held
        return other

    def flush(self) -> str:
        """See `StreamDecoder`."""
        text, _ = codecs.utf_8_decode(self._incomplete, "replace", True)
        self._incomplete = self._held = b""
        return text

    def _first(self, token_id: int) -> bytes:
        data = self._tokenizer.first_bytes_of(token_id)
        self._begun = data is not None
        return data or b""

    def _without_last_space(self, data: bytes) -> bytes:
        """`data` after the space that the last token ended with, and without its own."""
        if not data:
            return data
        text = data.removesuffix(b" ")
        data, self._held = self._held + text, data[len(text) :]
        return data

    def _stripped(self, data: bytes) -> bytes:
        """`data` without the spaces that must still be removed at the start of a text."""
        while data and self._to_strip:
            if not data.startswith(b" "):
                self._to_strip = 0
                break
            data = data[1:]
            self._to_strip -= 1
        return data
