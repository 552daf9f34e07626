"""Vocabularies inside GGUF files: kinds, flags, malformed arrays, and the model file that is written from them."""

import struct
from pathlib import Path

import pytest

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr.runtime.tokenizer.gguf_vocabulary import has_vocabulary
from mlxr.runtime.tokenizer.model_proto import Piece, Pieces, write_model_proto, write_pieces
from mlxr.runtime.tokenizer.proto_fields import proto_fields
from mlxr.runtime.weights import gguf_metadata

TESTS = Path(__file__).parents[2]
TINY = dict(gguf_metadata(TESTS / "data/golden/tiny-Q8_0.gguf"))
TOKENS, SCORES, TYPES = (TINY[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))


def changed(**changes):
    return TINY | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def without(key):
    return {name: value for name, value in TINY.items() if name != f"tokenizer.ggml.{key}"}


def test_a_vocabulary_of_another_size():
    tokenizer = tokenizer_from_gguf(TINY, "tiny")
    assert tokenizer.vocab_size == 640
    assert tokenizer.encode("a漢", add_special=False) == [3 + byte for byte in "▁a漢".encode()]
    assert tokenizer.decode([300]) == TOKENS[300]


def test_ids_that_end_a_turn_are_added():
    tokenizer = tokenizer_from_gguf(changed(eot_token_id=300, eom_token_id=301), "tiny")
    assert (tokenizer.eos_id, tokenizer.eos_ids) == (2, {2, 300, 301})


def test_ids_that_end_a_turn_are_found_by_name():
    tokens, types = [*TOKENS], [*TYPES]
    tokens[600], types[600] = "<|im_end|>", 3
    tokens[601], types[601] = "<|endoftext|>", 4
    tokens[602] = "<end_of_turn>"  # an ordinary piece, says the file
    tokenizer = tokenizer_from_gguf(changed(tokens=tokens, token_type=types), "tiny")
    assert tokenizer.eos_ids == {2, 600, 601, 602}
    assert tokenizer.is_control(602)


def test_what_a_text_is_given():
    def around(**flags):
        return tokenizer_from_gguf(changed(**flags), "tiny").encode("", add_special=True)

    assert around() == around(add_bos_token=True) == [1]
    assert around(add_bos_token=False) == []
    assert around(add_eos_token=True) == [1, 2]


def test_bos_and_eos_that_the_file_does_not_name():
    """They are the tokens 1 and 2, as in llama.cpp; -1 stands for none in some files."""
    for metadata in (without("bos_token_id"), changed(bos_token_id=640), changed(bos_token_id=2**32 - 1)):
        tokenizer = tokenizer_from_gguf(metadata | {"tokenizer.ggml.eos_token_id": 640}, "tiny")
        assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
        assert tokenizer.encode("a")[0] == 1


def test_bos_that_is_not_called_s():
    tokens = [*TOKENS]
    tokens[1] = "<|begin|>"
    assert tokenizer_from_gguf(changed(tokens=tokens), "tiny").encode("a")[0] == 1


def test_space_flags():
    def ids(**flags):
        return tokenizer_from_gguf(changed(**flags), "tiny").encode("a  b", add_special=False)

    assert ids() == ids(add_space_prefix=True, remove_extra_whitespaces=False)
    assert ids(add_space_prefix=False) != ids() != ids(remove_extra_whitespaces=True)


def test_user_defined_tokens_are_found_in_text():
    types = [*TYPES]
    tokens = [*TOKENS]
    tokens[600], types[600] = "<|user|>", 4
    tokenizer = tokenizer_from_gguf(changed(tokens=tokens, token_type=types), "tiny")
    assert 600 in tokenizer.encode("a<|user|>b")


@pytest.mark.parametrize("kind", ["rwkv", "hybriddna", None, 5])
def test_other_kinds_are_refused_by_name(kind):
    with pytest.raises(TokenizerError, match=rf"tiny: its tokenizer is of the kind {kind!r}, which is not supported"):
        tokenizer_from_gguf(changed(model=kind), "tiny")


def test_files_without_a_vocabulary():
    assert has_vocabulary(TINY)
    assert not has_vocabulary({})
    assert not has_vocabulary(changed(model="no_vocab"))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (without("tokens"), "no proper array `tokenizer.ggml.tokens`"),
        (changed(tokens=[]), "the vocabulary has no tokens"),
        (changed(token_type="x"), "no proper array `tokenizer.ggml.token_type`"),
        (changed(tokens=[1, 2]), "no proper array `tokenizer.ggml.tokens`"),
        (changed(scores=SCORES[:-1]), "640 tokens and 639 scores; expected as many of each"),
        (changed(token_type=TYPES[:-1]), "640 tokens and 639 token_type; expected as many of each"),
        (changed(scores=[*SCORES[:-1], float("nan")]), "token 639 of the vocabulary has the impossible score nan"),
        (changed(eos_token_id="2"), "`tokenizer.ggml.eos_token_id` is '2', expected an id"),
        (changed(add_space_prefix=1), "`tokenizer.ggml.add_space_prefix` is 1, expected true or false"),
    ],
)
def test_malformed_vocabularies(metadata, message):
    with pytest.raises(TokenizerError, match=message) as caught:
        tokenizer_from_gguf(metadata, "tiny")
    assert str(caught.value).startswith("tiny: ")


ODD = [*TYPES[:-6], 9, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "metadata",
    [
        without("scores") | without("nothing"),
        changed(token_type=ODD),
        changed(scores=[*SCORES[:-1], 1e300]),
        changed(tokens=[*TOKENS[:-1], "a\udcff"]),
        changed(tokens=[*TOKENS[:-1], ""]),
        changed(tokens=[*TOKENS[:-1], TOKENS[300]]),
        changed(token_type=[1, *TYPES[1:]]),
        changed(token_type=[2, 2, *TYPES[2:]]),
        changed(token_type=[3, *TYPES[1:]], unknown_token_id=0),
        changed(scores=[*SCORES, 0.0], token_type=[*TYPES, 1]),
        without("token_type"),
    ],
)
def test_what_is_odd_and_leaves_the_ids_alone(metadata):
    """No value of these changes the tokens of a text of bytes."""
    tokenizer = tokenizer_from_gguf(metadata, "tiny")
    assert tokenizer.vocab_size == 640
    assert tokenizer.encode("a漢") == [1, *(3 + byte for byte in "▁a漢".encode())]
    assert tokenizer.decode(range(1, 640)).startswith("\0\1")


def test_a_byte_without_a_token():
    """The others are found; in its place is the unknown token."""
    tokens, types = [*TOKENS], [*TYPES]
    tokens[3 + 0xE6], types[3 + 0xE6] = "nothing", 1
    tokenizer = tokenizer_from_gguf(changed(tokens=tokens, token_type=types), "tiny")
    ids = [0 if byte == 0xE6 else 3 + byte for byte in "▁a漢".encode()]
    assert tokenizer.encode("a漢", add_special=False) == ids
    assert tokenizer.decode(ids[3:]) == "a\ufffd\ufffd"


def test_user_defined_tokens_with_real_spaces_are_found():
    """Converters write U+2581 of such tokens as spaces."""
    tokens, types = [*TOKENS], [*TYPES]
    tokens[600], types[600] = "  ", 4
    tokens[601], types[601] = "   ", 4
    tokens[602] = "▁▁"  # the same text, but not user-defined
    for prefix in (False, True):
        tokenizer = tokenizer_from_gguf(changed(tokens=tokens, token_type=types, add_space_prefix=prefix), "tiny")
        assert [i for i in tokenizer.encode("a  b     c") if i >= 600] == [600, 601, 600]
        assert tokenizer.decode([600, 68, 601]) == "  A   "[prefix:]


@pytest.mark.parametrize(
    "texts", [[], ["", "a"], ["a", "\0", "b\0\0", "\0c"], ["é" * n for n in (58, 59, 63, 64, 8186, 8187, 8191, 8192)]]
)
def test_all_pieces_are_found_in_the_written_model(texts):
    """Also those with a zero, and with lengths at which the number of bytes of a length changes."""
    columns = Pieces(texts, [n - 1.5 for n in range(len(texts))], [1 + n % 6 for n in range(len(texts))])
    pieces = [list(proto_fields(field.value)) for field in proto_fields(write_pieces(columns))]
    found = [[(field.number, field.value) for field in piece] for piece in pieces]
    assert found == [
        [(1, text.encode()), (2, struct.pack("<f", score)), (3, kind)]
        for text, score, kind in zip(texts, columns.scores, columns.kinds, strict=True)
    ]


def test_the_written_model_is_what_protobuf_reads():
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    pieces = [Piece("<unk>", 0, 2), Piece("▁é" * 100, -1234.5, 1), Piece("<s>", 0, 3)]
    proto.ParseFromString(write_model_proto(Pieces.of(pieces), ("<unk>", "<s>", None), False, False, True))
    assert [Piece(piece.piece, piece.score, piece.type) for piece in proto.pieces] == pieces
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    assert trainer.model_type == trainer.BPE
    assert (trainer.unk_piece, trainer.bos_piece, trainer.HasField("eos_piece")) == ("<unk>", "<s>", False)
    assert (trainer.byte_fallback, normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces) == (
        False,
        False,
        True,
    )
    assert (normalizer.name, normalizer.precompiled_charsmap) == ("identity", b"")
