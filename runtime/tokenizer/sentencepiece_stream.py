"""Decodes a sequence of sentencepiece tokens one by one, exactly as sentencepiece decodes all at once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from mlxr.runtime.tokenizer.stream_decoder import StreamDecoder

if TYPE_CHECKING:
    from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer


class SentencepieceStreamDecoder(StreamDecoder):
    """Decodes one sequence; each byte that is not part of UTF-8 becomes U+FFFD.

    Source: the decoder of sentencepiece (sentencepiece_processor.cc, `Decode`), whose rules for the first space and for
    bytes that are not UTF-8 are the same.
    """

    __slots__ = ("_at_start", "_pending", "_texts", "_tokenizer")

    def __init__(self, tokenizer: "SentencepieceTokenizer") -> None:
        self._tokenizer, self._texts = tokenizer, tokenizer.texts
        self._at_start = True
        self._pending = bytearray()

    def push(self, token_id: int) -> str:
        """See `StreamDecoder`."""
        is_between = not (self._at_start or self._pending) and 0 <= token_id < len(self._texts)
        if is_between and (known := self._texts[token_id]) is not None:
            return known  # nearly every token; the engine has a step's time for those of all its requests
        token_id = self._tokenizer.check_id(token_id)
        byte = self._tokenizer.byte_of(token_id)
        if byte is not None:
            self._pending.append(byte)
            return self._seen(_take_characters(self._pending))
        before = self.flush()
        if self._tokenizer.is_control(token_id):
            return before
        if self._tokenizer.is_unknown(token_id):
            return before + self._seen(self._tokenizer.unknown_text)
        return before + self._text(self._tokenizer.text_of(token_id))

    @property
    def table(self) -> list[str | None] | None:
        """See `StreamDecoder`."""
        return None if self._at_start or self._pending else self._texts

    def learn(self, token_ids: Sequence[int]) -> None:
        """See `StreamDecoder`."""
        self._tokenizer.learn(token_ids)

    def copy(self) -> Self:
        """See `StreamDecoder`."""
        other = type(self)(self._tokenizer)
        other._at_start, other._pending = self._at_start, self._pending.copy()
        return other

    def flush(self) -> str:
        """See `StreamDecoder`."""
        return self._seen(_take_characters(self._pending, final=True))

    def _text(self, text: str) -> str:
        if not self._at_start or not text.startswith(" "):
            return self._seen(text)
        if self._tokenizer.drops_leading_spaces:
            return self._seen(text[1:])
        if self._tokenizer.drops_first_space:
            self._at_start = False
            return text[1:]
        return self._seen(text)

    def _seen(self, text: str) -> str:
        self._at_start = self._at_start and not text
        return text


def _take_characters(pending: bytearray, final: bool = False) -> str:
    """Removes the characters at the front of `pending` and returns them; bytes that begin none become U+FFFD.

    Bytes that may still become a character stay, unless `final`.
    """
    taken = []
    while pending:
        width = _width(pending[0])
        try:
            taken.append(pending[:width].decode("utf-8"))
        except UnicodeDecodeError as error:
            if not final and len(pending) < width and "unexpected end" in error.reason:
                break
            width = 1
            taken.append("\N{REPLACEMENT CHARACTER}")
        del pending[:width]
    return "".join(taken)


def _width(lead: int) -> int:
    """Bytes of the UTF-8 character that begins with `lead`; 1 if none does."""
    if lead < 0xC2 or lead > 0xF4:
        return 1
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
