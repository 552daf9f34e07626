"""Writes a sentencepiece model file (a serialised ModelProto) from a vocabulary.

Only the few fields that encoding and decoding read are written. A few dozen lines do this; generated classes would need
the protobuf package.

Source: sentencepiece_model.proto for the field numbers, https://protobuf.dev/programming-guides/encoding for the wire.
"""

import functools
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mlxr.runtime.tokenizer.proto_fields import proto_fields

Numbers = npt.NDArray[Any]

_VARINT, _BYTES, _FIXED32 = 0, 2, 5
UNIGRAM, BPE = 1, 2
_PIECES, _UNUSED = 1, 5
NO_PIECE = "\U0010ffff"
"""What pieces begin with that no text has."""


class Piece(NamedTuple):
    """One piece of a vocabulary."""

    text: str
    score: float
    kind: int
    """1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte: the same in GGUF and in sentencepiece."""


@dataclass
class Pieces:
    """A vocabulary in columns, each in the order of the ids; see `Piece`."""

    texts: list[str]
    scores: list[float]
    kinds: list[int]

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Self:
        """The columns of these pieces."""
        result = cls([], [], [])
        for piece in pieces:
            result.append(piece)
        return result

    def __len__(self) -> int:
        """How many pieces there are."""
        return len(self.texts)

    def __setitem__(self, index: int, piece: Piece) -> None:
        """Puts another piece in the place of one."""
        self.texts[index], self.scores[index], self.kinds[index] = piece

    def append(self, piece: Piece) -> None:
        """Adds a piece."""
        self.texts.append(piece.text)
        self.scores.append(piece.score)
        self.kinds.append(piece.kind)


def write_model_proto(
    pieces: "Pieces",
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


def write_pieces(pieces: Pieces) -> bytes:
    """The part of a serialised model that lists its pieces. Appended to a model, it adds pieces to the model."""
    # No loop of Python's own: a vocabulary of 262,144 is written at every start.
    texts = np.frombuffer("\0".join([*pieces.texts, ""]).encode("utf-8"), np.uint8)
    ends = np.flatnonzero(texts == 0)
    if ends.size != len(pieces):  # a zero of its own
        ends = np.cumsum([len(text.encode("utf-8")) + 1 for text in pieces.texts]) - 1
    sizes = np.diff(ends, prepend=-1) - 1
    scores = np.array(pieces.scores, "<f4").view(np.uint8).reshape(-1, 4)
    # Each piece: its tag, bytes that follow; tag and bytes of the text, the text; tag and score; tag and kind.
    tails = 1 + _varint_sizes(sizes) + sizes + 7
    begins = np.cumsum(np.concatenate([[0], 1 + _varint_sizes(tails) + tails]))
    result, is_text = np.empty(begins[-1], np.uint8), np.ones(begins[-1], bool)

    def put(at: Numbers, values: Numbers | int) -> None:
        result[at] = values
        is_text[at] = False

    def put_varint(at: Numbers, values: Numbers) -> None:
        while at.size:
            more = values > 0x7F
            put(at, values & 0x7F | np.where(more, 0x80, 0))
            at, values = at[more] + 1, values[more] >> 7

    begins, text, score = begins[:-1], begins[1:] - tails, begins[1:] - 7
    put(begins, _PIECE_TAG)
    put_varint(begins + 1, tails)
    put(text, _TEXT_TAG)
    put_varint(text + 1, sizes)
    put(score, _SCORE_TAG)
    for byte in range(4):
        put(score + 1 + byte, scores[:, byte])
    put(score + 5, _KIND_TAG)
    put(score + 6, np.array(pieces.kinds, np.int64))
    is_end = np.ones(texts.size, bool)
    is_end[ends] = False
    result[is_text] = texts[is_end]
    return result.tobytes()


def _varint_sizes(values: Numbers) -> Numbers:
    """How many bytes each value takes as a varint."""
    return 1 + np.searchsorted([1 << 7 * more for more in range(1, 9)], values, side="right")


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
            result += write_pieces(Pieces.of([change._replace(score=_score(field.value))]))
    beyond = range(token_id, max(changes, default=-1) + 1)
    more = Pieces.of(changes.get(i) or Piece(f"{NO_PIECE}{i}", 0, _UNUSED) for i in beyond)
    return bytes(result) + write_pieces(more)


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
        return bytes([value])
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


_PIECE_TAG, _TEXT_TAG, _SCORE_TAG, _KIND_TAG = (
    _tag(field, wire_type)[0] for field, wire_type in ((_PIECES, _BYTES), (1, _BYTES), (2, _FIXED32), (3, _VARINT))
)

WITHOUT_PREFIX = _message(3, _integer(3, 0))
"""Appended to a model, it is one that puts no space before a text: of what is there twice, the last counts."""
