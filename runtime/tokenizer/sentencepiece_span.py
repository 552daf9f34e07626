"""Finds how much text a token of a sentencepiece model can stand for, from the normalizer in the serialised model."""

from mlxr.runtime.tokenizer.proto_fields import proto_fields
from mlxr.runtime.tokenizer.text_growth import longest_replacement
from mlxr.runtime.tokenizer.token_span import TokenSpan


def sentencepiece_span(charsmap: bytes, drops: bool, pieces: list[str], num_bytes: int) -> TokenSpan | None:
    """The span of a sentencepiece model that has a token for every byte and does not change text; else None.

    Args:
        charsmap: the table by which it rewrites text; empty: there is none.
        drops: whether it leaves out repeated spaces.
        pieces: its vocabulary.
        num_bytes: how many pieces are bytes.
    """
    if charsmap or num_bytes < 256:
        return None
    return TokenSpan(max(map(len, pieces)), drops)


def sentencepiece_growth(charsmap: bytes, source: str) -> float:
    """Most bytes that a model makes of a byte of text before it looks for pieces: a space becomes three."""
    return 3.0 * (longest_replacement(charsmap, source) if charsmap else 1)


def read_rewriting(proto: bytes) -> tuple[bytes, bool]:
    """The table by which a model rewrites text, if it has one, and whether it leaves out repeated spaces.

    Source: sentencepiece_model.proto: ModelProto.normalizer_spec = 3, of whose fields 2 is the table and 4 the flag.
    """
    charsmap, drops = b"", True
    for field in proto_fields(proto):
        if field.number == 3 and isinstance(field.value, bytes):
            for inner in proto_fields(field.value):
                if inner.number == 2 and isinstance(inner.value, bytes) and inner.value:
                    charsmap = inner.value
                drops = bool(inner.value) if inner.number == 4 else drops
    return charsmap, drops
