"""Finds how much text a token of a sentencepiece model can stand for, from the normalizer in the serialised model."""

from collections.abc import Iterable

from mlxr.runtime.tokenizer.token_span import TokenSpan


def sentencepiece_span(proto: bytes, pieces: list[str], num_bytes: int) -> TokenSpan | None:
    """The span of a sentencepiece model that has a token for every byte and does not change text; else None.

    Args:
        proto: the model, serialised.
        pieces: its vocabulary.
        num_bytes: how many pieces are bytes.
    """
    rewrites, drops = _normalizer(proto)
    if rewrites or num_bytes < 256:
        return None
    return TokenSpan(max(map(len, pieces)), drops)


def _normalizer(proto: bytes) -> tuple[bool, bool]:
    """Whether a model rewrites text by a table, and whether it leaves out repeated spaces.

    Source: sentencepiece_model.proto: ModelProto.normalizer_spec = 3, of whose fields 2 is the table and 4 the flag.
    """
    rewrites, drops = False, True
    for field, value in _fields(proto):
        if field == 3 and isinstance(value, bytes):
            for inner, setting in _fields(value):
                rewrites |= inner == 2 and bool(setting)
                drops = bool(setting) if inner == 4 else drops
    return rewrites, drops


def _fields(message: bytes) -> Iterable[tuple[int, int | bytes]]:
    """The fields of a protobuf message, which has been parsed before and so is complete."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        wire = tag & 7
        if wire == 0:
            yield tag >> 3, varint()
            continue
        size = varint() if wire == 2 else {1: 8, 5: 4}[wire]
        yield tag >> 3, message[at : at + size]
        at += size
