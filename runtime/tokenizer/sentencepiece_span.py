"""Finds how much text a token of a sentencepiece model can stand for, from the normalizer in the serialised model."""

from mlxr.runtime.tokenizer.proto_fields import proto_fields
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
    for field in proto_fields(proto):
        if field.number == 3 and isinstance(field.value, bytes):
            for inner in proto_fields(field.value):
                rewrites |= inner.number == 2 and bool(inner.value)
                drops = bool(inner.value) if inner.number == 4 else drops
    return rewrites, drops
