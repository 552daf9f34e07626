"""Vocabularies inside GGUF files: kinds, flags, malformed arrays, and the model file that is written from them."""

from pathlib import Path

import pytest

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_vocabulary import has_vocabulary, tokenizer_from_gguf
from mlxr.runtime.tokenizer.model_proto import Piece, write_model_proto
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
    tokens[602] = "<end_of_turn>"  # an ordinary piece
    assert tokenizer_from_gguf(changed(tokens=tokens, token_type=types), "tiny").eos_ids == {2, 600, 601}


def test_what_a_text_is_given():
    def around(**flags):
        return tokenizer_from_gguf(changed(**flags), "tiny").encode("", add_special=True)

    assert around() == around(add_bos_token=True) == [1]
    assert around(add_bos_token=False) == []
    assert around(add_eos_token=True) == [1, 2]


def test_bos_and_eos_are_found_by_name():
    metadata = {key: value for key, value in TINY.items() if not key.endswith(("bos_token_id", "eos_token_id"))}
    tokenizer = tokenizer_from_gguf(metadata, "tiny")
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)


def test_no_bos_and_no_eos():
    metadata = {key: value for key, value in TINY.items() if not key.endswith(("bos_token_id", "eos_token_id"))}
    metadata["tokenizer.ggml.tokens"] = ["<unk>", "<x>", "<y>", *TOKENS[3:]]
    tokenizer = tokenizer_from_gguf(metadata, "tiny")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (None, None, frozenset())
    assert tokenizer.encode("a") == tokenizer.encode("a", add_special=False)


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


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", None, 5])
def test_other_kinds_are_refused_by_name(kind):
    with pytest.raises(TokenizerError, match=rf"tiny: its tokenizer is of the kind {kind!r}, expected 'llama'"):
        tokenizer_from_gguf(changed(model=kind), "tiny")


def test_files_without_a_vocabulary():
    assert has_vocabulary(TINY)
    assert not has_vocabulary({})
    assert not has_vocabulary(changed(model="no_vocab"))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (without("tokens"), "no proper array `tokenizer.ggml.tokens`"),
        (without("scores"), "no proper array `tokenizer.ggml.scores`"),
        (changed(token_type="x"), "no proper array `tokenizer.ggml.token_type`"),
        (changed(tokens=[1, 2]), "no proper array `tokenizer.ggml.tokens`"),
        (changed(scores=SCORES[:-1]), "640 tokens and 639 scores; expected as many of each"),
        (changed(token_type=TYPES[:-1]), "640 tokens and 639 token_type; expected as many of each"),
        (changed(token_type=[*TYPES[:-1], 9]), "token 639 of the vocabulary has the unknown type 9"),
        (changed(scores=[*SCORES[:-1], 1e300]), "token 639 of the vocabulary has the impossible score 1e\\+300"),
        (changed(scores=[*SCORES[:-1], float("nan")]), "token 639 of the vocabulary has the impossible score nan"),
        (changed(tokens=[*TOKENS[:-1], "a\udcff"]), r"token 639 of the vocabulary is not UTF-8: 'a\\udcff'"),
        (changed(tokens=[*TOKENS[:-1], ""]), "token 639 of the vocabulary is empty"),
        (changed(tokens=[*TOKENS[:-1], TOKENS[300]]), "token 639 of the vocabulary is .* for a second time"),
        (changed(token_type=[1, *TYPES[1:]]), "has 0 unknown tokens, expected one"),
        (changed(token_type=[2, 2, *TYPES[2:]]), "has 2 unknown tokens, expected one"),
        (changed(bos_token_id=640), "`tokenizer.ggml.bos_token_id` is 640, expected an id below 640"),
        (changed(eos_token_id="2"), "`tokenizer.ggml.eos_token_id` is '2', expected an id"),
        (changed(add_space_prefix=1), "`tokenizer.ggml.add_space_prefix` is 1, expected true or false"),
        (changed(token_type=[*TYPES[:5], 1, *TYPES[6:]]), "corrupt.*there are not 256 byte pieces"),
    ],
)
def test_malformed_vocabularies(metadata, message):
    with pytest.raises(TokenizerError, match=message) as caught:
        tokenizer_from_gguf(metadata, "tiny")
    assert str(caught.value).startswith("tiny: ")


def test_the_written_model_is_what_protobuf_reads():
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    pieces = [Piece("<unk>", 0, 2), Piece("▁é" * 100, -1234.5, 1), Piece("<s>", 0, 3)]
    proto.ParseFromString(write_model_proto(pieces, ("<unk>", "<s>", None), False, False, True))
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
