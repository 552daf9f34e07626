"""Cuts rendered text into the pieces that markers are made of, so that differences end between them, not within."""

import re
from collections.abc import Sequence
from itertools import takewhile

# Signs of private use, U+E000 to U+E0FF, stand for what differs between calls: names, ids, keys.
_TAG = r"<(?:/[^<>\s]{0,80}|[^<>\s/\ue000-\ue0ff][^<>\s\ue000-\ue0ff]{0,80})>"
_LEXEME = re.compile(rf"{_TAG}|\[/?[A-Z_]+\]|[\ue000-\ue0ff]|[^\W\ue000-\ue0ff]+|\s|.", re.DOTALL)
_MARKER = re.compile(rf"({_TAG}|\[/?[A-Z_]+\])")


def lexemes(text: str) -> list[str]:
    """Tags, words, single spaces and signs."""
    return _LEXEME.findall(text)


def common_start(*texts: str) -> str:
    """What all texts begin with, in whole lexemes."""
    return "".join(_shared([lexemes(text) for text in texts]))


def common_end(*texts: str) -> str:
    """What all texts end with, in whole lexemes."""
    return "".join(reversed(_shared([lexemes(text)[::-1] for text in texts])))


def _shared(sequences: Sequence[list[str]]) -> list[str]:
    """What all sequences begin with."""
    columns = zip(*sequences, strict=False)
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]


def chunks(text: str) -> list[str]:
    """The parts of a marker between which white space does not matter: words, and tags from what is beside them."""
    return [part for piece in _MARKER.split(text) for part in piece.split()]
