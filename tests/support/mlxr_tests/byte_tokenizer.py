"""A vocabulary in which every byte is a token, so that constraints can be asked about texts byte by byte."""

from collections.abc import Iterable, Mapping, Sequence

from mlxr.runtime.tokenizer.tokenizer import StreamDecoder, Tokenizer

NUM_CONTROL = 32
END = 0
"""Ids below are control tokens, `<|0|>` to `<|31|>`, of which 0 ends an answer; then come the bytes."""


class ByteTokenizer(Tokenizer):
    """Control tokens, bytes, and perhaps some longer tokens."""

    _span = None

    def __init__(self, longer: Sequence[str] = (), control: Mapping[int, str] | None = None) -> None:
        self._texts = [bytes([value]) for value in range(256)] + [text.encode() for text in longer]
        self._control = {token_id: f"<|{token_id}|>" for token_id in range(NUM_CONTROL)} | dict(control or {})
        super().__init__("bytes", NUM_CONTROL + len(self._texts))
        self._set_special(None, END, {})

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        data = text.encode()
        if data in self._texts[256:]:
            return [NUM_CONTROL + self._texts.index(data)]
        return ids_of(data)

    def _encode_parts(self, parts: Sequence[str]) -> list[int]:
        raise NotImplementedError

    def stream_decoder(self) -> StreamDecoder:
        raise NotImplementedError

    def bytes_of(self, token_id: int) -> bytes:
        return b"" if token_id < NUM_CONTROL else self._texts[token_id - NUM_CONTROL]

    def is_control(self, token_id: int) -> bool:
        return token_id < NUM_CONTROL

    def token_text(self, token_id: int) -> str:
        return self._control[token_id] if token_id < NUM_CONTROL else repr(self.bytes_of(token_id))


def ids_of(data: Iterable[int]) -> list[int]:
    """The tokens of bytes, one for each."""
    return [NUM_CONTROL + value for value in data]
