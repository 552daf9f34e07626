"""Reads the fields of a protobuf message, for the few that are needed of a sentencepiece model.

Source: https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Field(NamedTuple):
    """A field of a message, and where the message has it."""

    number: int
    value: int | bytes
    begin: int
    end: int


def proto_fields(message: bytes) -> Iterable[Field]:
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
        begin = at
        tag = varint()
        wire = tag & 7
        value: int | bytes
        if wire == 0:
            value = varint()
        else:
            size = varint() if wire == 2 else {1: 8, 5: 4}[wire]
            value = message[at : at + size]
            at += size
        yield Field(tag >> 3, value, begin, at)
