"""A tiny model of random weights whose vocabulary has what a chat template writes: it must call, and calls anything."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlxr_tests.talker import write_model
from mlxr_tests.vocabularies import CONTROL, WORDS, byte_level, metadata_of

_SIZE = 2304
"""Tokens of each model: so the compiled step is that of all."""
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_MOST_PIECES = 300
_ENDS = ('"', "'", "}", "]", ")", '\\"', '"}', '"]', "Ċ")


def write_caller(
    path: Path, template: str, control: Sequence[str], phrases: Sequence[str], markers: Sequence[str]
) -> Path:
    """Writes it as a GGUF file.

    Args:
        path: of the file.
        template: its chat template.
        control: names of control tokens.
        phrases: texts of which parts are tokens.
        markers: texts that are tokens, and come often: else few texts would end.
    """
    metadata = metadata_of(byte_level(WORDS["llama-bpe"]), "llama-bpe")
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    rows = [(name, _CONTROL) for name in control if name not in CONTROL]
    starts = {name[0] for name in control}  # a token that has one of these, or begins before it, would hide it
    for piece in (*markers, *_pieces(phrases)):
        if not starts.intersection(piece[1:]) and not piece.startswith(tuple(control)):
            rows.append((piece, _USER_DEFINED))
    rows = [row for row in dict(rows).items() if row[0] not in tokens][: _SIZE - len(tokens)]
    rows += [(f"<unused{number}>", _UNUSED) for number in range(_SIZE - len(tokens) - len(rows))]
    tokens += [token for token, _ in rows]
    kinds += [kind for _, kind in rows]
    return write_model(path, template, metadata, context=16384, likely=_likely(tokens, kinds, markers))


def _pieces(phrases: Sequence[str]) -> list[str]:
    """Parts of texts, in printable characters."""
    chance, found = random.Random(0), dict[str, None]()
    for _ in range(20 * _MOST_PIECES):
        phrase = chance.choice(phrases)
        start = chance.randrange(len(phrase))
        piece = phrase[start : start + chance.choice((2, 3, 5, 9, 14))].strip()
        if len(piece) > 1 and piece.isprintable() and " " not in piece:
            found[piece] = None
    return list(found)[:_MOST_PIECES]


def _likely(tokens: Sequence[str], kinds: Sequence[int], markers: Sequence[str]) -> Mapping[int, float]:
    """How much likelier than others tokens are: such as end what has begun."""
    found: dict[int, float] = {}
    for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind == _UNUSED:
            found[number] = -10
        elif token in markers or token in _ENDS:
            found[number] = 3.2
        elif kind == _CONTROL:
            found[number] = 3.4
        elif token[:1] in "\"'}])<|" or token.startswith("Ċ"):
            found[number] = 1.5
    return found
