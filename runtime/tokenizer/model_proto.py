"""Writes a sentencepiece model file (a serialised ModelProto) from a vocabulary.

Only the few fields that encoding and decoding read are written. A few dozen lines do this; generated classes would need
the protobuf package.

Source: sentencepiece_model.proto for the field numbers, https://protobuf.dev/programming-guides/encoding for the wire.
"""

import functools
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mlxr.runtime.tokenizer.proto_fields import proto_fields

_VARINT, _BYTES, _FIXED32 = 0, 2, 5
UNIGRAM, BPE = 1, 2
_PIECES, _UNUSED = 1, 5
NO_PIECE = "\U0010ffff"
"""What pieces begin with that no text has."""
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
    written: list[bytes] = []
    for piece in pieces:
        text = piece.text.encode("utf-8")
        if len(text) < _SHORT and 0 <= piece.kind < 0x80:
            # Nearly all, and a vocabulary is written at every start: what `_piece` gives, with its lengths known.
            own, whole = _ONE_BYTE[len(text)], _ONE_BYTE[len(text) + _AROUND]
            written += (
                _PIECE_TAG,
                whole,
                _TEXT_TAG,
                own,
                text,
                _SCORE(_SCORE_TAG, piece.score, _KIND_TAG),
                _ONE_BYTE[piece.kind],
            )
        else:
            written.append(_message(_PIECES, _piece(piece)))
    return b"".join(written)


def changed_pieces(proto: bytes, changes: Mapping[int, Piece]) -> bytes:
    """A serialised model with other pieces at some of its ids; ids beyond its own are added, without a gap.

    Args:
        proto: the model, which has been parsed before and so is complete.
        changes: the pieces by id. One that is there keeps its score.
    """
    result, token_id = bytearray(), 0
    for field in proto_fields(proto):
        change = None
        if field.number == _PIECES and isinstance(field.value, bytes):
            change, token_id = changes.get(token_id), token_id + 1
        if change is None or not isinstance(field.value, bytes):
            result += proto[field.begin : field.end]
        else:
            result += write_pieces([change._replace(score=_score(field.value))])
    beyond = range(token_id, max(changes, default=-1) + 1)
    return bytes(result) + write_pieces(changes.get(i) or Piece(f"{NO_PIECE}{i}", 0, _UNUSED) for i in beyond)


def piece_kinds(proto: bytes) -> list[int]:
    """The kinds of a model's pieces."""
    kinds = []
    for field in proto_fields(proto):
        if field.number == _PIECES and isinstance(field.value, bytes):
            own = [inner.value for inner in proto_fields(field.value) if inner.number == 3]
            kinds.append(int(own[-1]) if own else 1)
    return kinds


def _score(piece: bytes) -> float:
    packed = next((field.value for field in proto_fields(piece) if field.number == 2), b"")
    return float(struct.unpack("<f", packed)[0]) if isinstance(packed, bytes) and len(packed) == 4 else 0.0


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


_PIECE_TAG, _TEXT_TAG = _tag(_PIECES, _BYTES), _tag(1, _BYTES)
_SCORE_TAG = int.from_bytes(_tag(2, _FIXED32), "little")
_KIND_TAG = _tag(3, _VARINT)
_SCORE = struct.Struct("<Bf1s").pack
_AROUND = 9  # bytes of a piece besides its text, where both lengths take one
_SHORT = 0x80 - _AROUND

WITHOUT_PREFIX = _message(3, _integer(3, 0))
"""Appended to a model, it is one that puts no space before a text: of what is there twice, the last counts."""
