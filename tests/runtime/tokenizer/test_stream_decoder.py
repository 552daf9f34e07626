"""Streaming: the pieces joined are the decoded whole, characters are never split, and a token's cost is constant."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.model_proto import Piece, Pieces, write_model_proto
from mlxr.runtime.tokenizer.sentencepiece_stream import SentencepieceStreamDecoder
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr_tests.few import examples
from mlxr_tests.vocabularies import single_bytes

TESTS = Path(__file__).parents[2]
STORYTELLER = load_tokenizer(TESTS.parent / "models/storyteller")
BYTE = 3  # id of the byte piece <0x00>
SPACE = 4018  # id of the piece that is a space alone


def small_tokenizer(add_dummy_prefix, remove_extra_whitespaces):
    pieces = [Piece("<unk>", 0, 2), Piece("<s>", 0, 3), Piece("</s>", 0, 3)]
    pieces += [Piece(f"<0x{byte:02X}>", 0, 6) for byte in range(256)]
    words = ["▁", "a", "▁a", "▁▁", "▁▁b", "é", "a▁"]
    pieces += [Piece(word, -float(i), 1) for i, word in enumerate(words)]
    pieces += [Piece("▁user", 0, 4), Piece("<pad>", 0, 5)]
    proto = write_model_proto(
        Pieces.of(pieces), ("<unk>", "<s>", "</s>"), True, add_dummy_prefix, remove_extra_whitespaces
    )
    return SentencepieceTokenizer(proto, "small")


TOKENIZERS = {
    "storyteller": STORYTELLER,
    "prefix": small_tokenizer(True, False),
    "plain": small_tokenizer(False, False),
    "squeezed": small_tokenizer(True, True),
    "squeezed without prefix": small_tokenizer(False, True),
}


def streamed(tokenizer, ids):
    decoder = tokenizer.stream_decoder()
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


interesting_bytes = st.sampled_from(
    bytes.fromhex("00 20 41 7f 80 bf c0 c2 a9 e0 a0 e2 82 ac ed ef bd f0 9f 8e 89 f4 8f 90 f5 ff")
).map(lambda byte: BYTE + byte)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=examples(150, 50), deadline=None)
@given(data=st.data())
def test_joined_pieces_are_the_decoded_text(name, data):
    tokenizer = TOKENIZERS[name]
    last = tokenizer.vocab_size - 1
    token_id = st.integers(0, last) | st.integers(259, min(last, 270)) | st.integers(0, 2) | interesting_bytes
    ids = data.draw(st.lists(token_id | st.just(SPACE) if name == "storyteller" else token_id, max_size=12))
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    for piece in pieces:
        piece.encode("utf-8")


def test_first_space_differs_between_the_tokenizers():
    """Shows that the cases above differ: a space alone, then " a", at the start."""
    decoded = {name: tokenizer.decode([259, 261]) for name, tokenizer in TOKENIZERS.items() if name != "storyteller"}
    assert decoded == {"prefix": " a", "plain": "  a", "squeezed": "a", "squeezed without prefix": "a"}


def test_a_character_comes_when_its_last_byte_does():
    ids = [BYTE + byte for byte in "é🎉".encode()]
    assert streamed(STORYTELLER, ids) == ["", "é", "", "", "", "🎉", ""]


def test_an_unfinished_character_is_replaced_at_the_end_or_by_the_next_token():
    start = [BYTE + byte for byte in "🎉".encode()[:3]]
    assert streamed(STORYTELLER, start) == ["", "", "", "\ufffd" * 3]
    word = STORYTELLER.encode("cat", add_special=False)
    assert streamed(STORYTELLER, start + word)[3].startswith("\ufffd" * 3)
    assert streamed(STORYTELLER, [BYTE + 0xE2, BYTE + 0x41]) == ["", "\ufffdA", ""]


def test_control_tokens_give_nothing():
    assert streamed(STORYTELLER, [1, 2, 1]) == ["", "", "", ""]


def test_a_refused_id_leaves_the_decoder_as_it_was():
    decoder = STORYTELLER.stream_decoder()
    first, second = (BYTE + byte for byte in "é".encode())
    decoder.push(first)
    with pytest.raises(TokenizerError):
        decoder.push(4096)
    assert decoder.push(second) == "é"
    for outside in (-1, 4096):
        with pytest.raises(TokenizerError):
            decoder.push(outside)


class CountingTokenizer:
    """Passes on what a decoder asks of a tokenizer, and counts the questions."""

    def __init__(self):
        self.calls = 0

    def __getattr__(self, name):
        value = getattr(STORYTELLER, name)
        if not callable(value):
            return value

        def ask(token_id):
            assert isinstance(token_id, int), f"{name} was asked about more than one token"
            self.calls += 1
            return value(token_id)

        return ask


def test_the_work_of_a_token_does_not_grow():
    ids = STORYTELLER.encode((TESTS / "data/storyteller/valid.txt").read_text()[:60_000])
    assert len(ids) > 15_000
    tokenizer = CountingTokenizer()
    decoder, text = SentencepieceStreamDecoder(tokenizer), []
    for count, token_id in enumerate(ids, 1):
        text.append(decoder.push(token_id))
        assert tokenizer.calls <= 5 * count, "a token is asked about once, by each of five questions"
    assert tokenizer.calls >= 2 * len(set(ids)), "each is asked about once at least"
    assert "".join([*text, decoder.flush()]) == STORYTELLER.decode(ids)


@pytest.mark.parametrize("name", [*TOKENIZERS, "byte level"])
def test_texts_that_are_known_are_those_of_single_tokens(name, tmp_path):
    """Of runs of tokens at random, before and after they are known; characters may be begun in between."""
    if name not in TOKENIZERS:
        single_bytes("<end>").save(str(tmp_path / "tokenizer.json"))
    tokenizer = TOKENIZERS[name] if name in TOKENIZERS else load_tokenizer(tmp_path)
    random, decoder, known, given, text = np.random.default_rng(3), tokenizer.stream_decoder(), 0, [], []
    for _ in range(300):
        first = random.choice([0, 255, 259])  # bytes come before
        ids = random.integers(first % tokenizer.vocab_size, tokenizer.vocab_size, random.integers(1, 4)).tolist()
        table, other = decoder.table, decoder.copy()
        if table is not None:
            decoder.learn(ids)
        texts = [None] if table is None else [table[token_id] for token_id in ids]
        pushed = [decoder.push(token_id) for token_id in ids]
        assert [other.push(token_id) for token_id in ids] == pushed, "a copy goes on as the decoder would have"
        assert None in texts or texts == pushed
        known += None not in texts
        given, text = [*given, *ids], [*text, *pushed]
    assert known > 10
    if name not in TOKENIZERS:
        whole = b"".join(map(tokenizer.bytes_of, given)).decode("utf-8", "replace")
        assert "".join([*text, decoder.flush()]) == whole, "no text of a part of a character is taken for known"
