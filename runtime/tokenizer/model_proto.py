"""Writes a sentencepiece model file (a serialised ModelProto) from a vocabulary.

Only the few fields that encoding and decoding read are written. A dozen lines do this; generated classes would need the
protobuf package.

Source: sentencepiece_model.proto for the field numbers, https://protobuf.dev/programming-guides/encoding for the wire.
"""

import functools
import struct
from collections.abc import Iterable
from typing import NamedTuple

_VARINT, _BYTES, _FIXED32 = 0, 2, 5
UNIGRAM, BPE = 1, 2
_ONE_BYTE = [bytes([value]) for value in range(0x80)]


class Piece(NamedTuple):
    """One piece of a vocabulary."""

    text: str
    score: float
    kind: int
    """1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte: the same in GGUF and in sentencepiece."""


def write_model_proto(
    pieces: Iterable[Piece],
    specials: tuple[str, str | None, str | None],
    byte_fallback: bool,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    model_type: int = BPE,
    charsmap: bytes = b"",
    escape_whitespaces: bool = True,
) -> bytes:
    """A model of `pieces`, in the order of their ids.

    Args:
        pieces: the vocabulary.
        specials: the pieces of the unknown, BOS and EOS tokens.
        byte_fallback: whether text that has no piece is written as byte pieces.
        add_dummy_prefix: whether a space is put before the text.
        remove_extra_whitespaces: whether runs of spaces become one.
        model_type: `BPE` or `UNIGRAM`.
        charsmap: how text is normalised, as sentencepiece stores that; empty: not at all.
        escape_whitespaces: whether U+2581 stands for a space in pieces.
    """
    model = write_pieces(pieces)
    trainer = _integer(3, model_type) + _integer(35, byte_fallback)
    trainer += b"".join(_text(45 + index, name) for index, name in enumerate(specials) if name is not None)
    normalizer = _text(1, "custom" if charsmap else "identity") + (_message(2, charsmap) if charsmap else b"")
    normalizer += _integer(3, add_dummy_prefix) + _integer(4, remove_extra_whitespaces)
    normalizer += b"" if escape_whitespaces else _integer(5, 0)
    return model + _message(2, trainer) + _message(3, normalizer)


def write_pieces(pieces: Iterable[Piece]) -> bytes:
    """The part of a serialised model that lists its pieces. Appended to a model, it adds pieces to the model."""
    return b"".join(_message(1, _piece(piece)) for piece in pieces)


def _piece(piece: Piece) -> bytes:
    return _text(1, piece.text) + _tag(2, _FIXED32) + struct.pack("<f", piece.score) + _integer(3, piece.kind)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8"))


def _message(field: int, content: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(content)) + content


def _integer(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + _varint(value)


@functools.cache
def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]  # nearly always; worth a shortcut, since a vocabulary is written at every start
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
