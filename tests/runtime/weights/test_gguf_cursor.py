"""Strings of a GGUF header: those that are found all at once are those that a loop finds."""

import io
import random
import struct

import pytest

from mlxr.runtime.weights.gguf_cursor import GgufCursor, GgufFault

COUNT = 1100


def _read(raw: bytes, *, in_a_loop: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[object, int, int]:
    stream = io.BytesIO(b"before" + raw)
    cursor = GgufCursor(stream, len(raw) + 6)
    cursor.take(6, "what is before")
    with monkeypatch.context() as patch:
        if in_a_loop:
            patch.setattr(GgufCursor, "_texts_at_once", lambda *_: None)
        try:
            return cursor.texts(COUNT, "tokens"), cursor.position, stream.tell()
        except GgufFault as error:
            return str(error), cursor.position, 0


def _packed(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


@pytest.mark.parametrize("odd", [b"", b"\0", b"a\0", b"\0\0\0\0\0\0\0\0\0a", b"a" * 70_000, b"\1" + b"\0" * 7, None])
def test_unusual_strings(odd: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    usual = [1, 2, 5, 6, 7, 8, 30, 127, 128, 255, 256, 257, 511, 512]
    for _ in range(20):
        texts = [rng.randbytes(rng.choice(usual)).replace(b"\0", b"\xe4\xb8") for _ in range(COUNT)]
        if odd is not None:
            for _ in range(rng.choice([1, 2, 9])):
                at = rng.randrange(COUNT - 1)
                texts[at : at + rng.choice([1, 2])] = [odd] * (1 if at else 2)
            texts = (texts + texts)[:COUNT]
        raw = _packed(texts) + bytes(rng.choices(range(3), k=rng.choice([0, 1, 40])))
        for data in (raw, raw[: rng.randrange(len(raw))], raw[: -rng.randrange(1, 60)]):
            fast = _read(data, in_a_loop=False, monkeypatch=monkeypatch)
            assert fast == _read(data, in_a_loop=True, monkeypatch=monkeypatch)


def test_short_strings_are_found_at_once() -> None:
    texts = [b"token %d" % number * (1 + number % 40) for number in range(COUNT)]
    raw = _packed(texts)
    found = GgufCursor(io.BytesIO(raw), len(raw))._texts_at_once(COUNT)
    assert found is None, "on average they are too long"
    texts = [b"token %d" % number for number in range(COUNT - 1)] + [b"long" * 100]
    raw = _packed(texts)
    assert GgufCursor(io.BytesIO(raw), len(raw))._texts_at_once(COUNT) == [text.decode() for text in texts]


def test_nothing_but_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (0, 1, 6, 7, 8, 9, 100, 8 * COUNT, 20 * COUNT):
        fast = _read(bytes(size), in_a_loop=False, monkeypatch=monkeypatch)
        assert fast == _read(bytes(size), in_a_loop=True, monkeypatch=monkeypatch)
