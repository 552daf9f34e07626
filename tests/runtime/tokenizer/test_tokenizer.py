"""Encoding and decoding: golden ids, the two sources of one tokenizer, special tokens, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer import SpecialTokens, load_tokenizer
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr_tests.few import examples

TESTS = Path(__file__).parents[2]
MODELS = TESTS.parent / "models/storyteller"
GOLDEN = json.loads((TESTS / "data/golden/storyteller-golden.json").read_text())
HELD_OUT = (TESTS / "data/storyteller/valid.txt").read_text()[:60_000]
FROM_MODEL = load_tokenizer(MODELS / "tokenizer.model")
FROM_GGUF = load_tokenizer(MODELS / "storyteller-q8_0.gguf")
BOTH = pytest.mark.parametrize("tokenizer", [FROM_MODEL, FROM_GGUF], ids=["model", "gguf"])


@BOTH
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["prompt"][:12])
def test_golden_prompts(tokenizer, case):
    assert tokenizer.encode(case["prompt"]) == case["ids"]
    assert tokenizer.decode(case["ids"] + case["greedy_fp32"]) == case["text_fp32"]


def test_gguf_gives_the_ids_of_the_model_on_held_out_text():
    assert len(HELD_OUT) > 50_000
    ids = FROM_MODEL.encode(HELD_OUT)
    assert FROM_GGUF.encode(HELD_OUT) == ids
    assert FROM_MODEL.decode(ids) == FROM_GGUF.decode(ids) == HELD_OUT


@settings(max_examples=examples(300, 120), deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.text(" \n\ta1éz漢🎉<s>/▁0xA", max_size=30))
def test_gguf_gives_the_ids_of_the_model_on_any_text(text):
    ids = FROM_MODEL.encode(text)
    assert FROM_GGUF.encode(text) == ids
    assert FROM_MODEL.decode(ids) == text.replace("\u2581", " ")


@BOTH
def test_special_tokens(tokenizer):
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (1, 2, {2}, 4096)
    assert tokenizer.encode("", add_special=True) == [1]
    assert tokenizer.encode("", add_special=False) == []
    assert tokenizer.encode("a cat")[1:] == tokenizer.encode("a cat", add_special=False)
    assert tokenizer.decode([1, *tokenizer.encode("a cat"), 2]) == "a cat"
    assert tokenizer.decode([1, 2]) == "" == tokenizer.decode([])


@BOTH
def test_special_tokens_spelled_out_are_text(tokenizer):
    ids = tokenizer.encode("<s></s><unk><0x41>", add_special=False)
    assert not {0, 1, 2, 3 + 0x41} & set(ids)
    assert tokenizer.decode(ids) == "<s></s><unk><0x41>"


@BOTH
@pytest.mark.parametrize("token_id", [-1, 4096, 2**31, 2**70, np.int64(-5)])
def test_ids_outside_the_vocabulary(tokenizer, token_id):
    with pytest.raises(TokenizerError, match=f"token id {token_id} is outside the vocabulary of 4096"):
        tokenizer.decode([5, token_id])
    with pytest.raises(TokenizerError, match="is outside the vocabulary"):
        tokenizer.stream_decoder().push(token_id)


@pytest.mark.parametrize("token_id", ["5", 5.0, None])
def test_ids_that_are_no_integers(token_id):
    with pytest.raises(TokenizerError, match="expected a token id, got"):
        FROM_MODEL.decode([token_id])


def test_numpy_ids():
    assert FROM_MODEL.decode(np.array(GOLDEN[0]["ids"], np.int32)) == GOLDEN[0]["prompt"]


def test_text_with_half_a_surrogate_pair():
    with pytest.raises(TokenizerError, match=r"character 2 of the text is the lone surrogate '\\udc80'"):
        FROM_MODEL.encode("ab\udc80")


@pytest.mark.parametrize("special", [{"bos_id": 4096}, {"eos_id": 5000}])
def test_special_ids_outside_the_vocabulary(special):
    with pytest.raises(TokenizerError, match="is outside the vocabulary"):
        SentencepieceTokenizer((MODELS / "tokenizer.model").read_bytes(), "here", SpecialTokens(**special))


@BOTH
def test_special_tokens_spelled_out_may_be_parsed(tokenizer):
    a, b = (tokenizer.encode(text, add_special=False) for text in ("a", " b"))
    assert tokenizer.encode("<s>a</s> b<s>", add_special=False, parse_special=True) == [1, *a, 2, *b, 1]
    assert tokenizer.encode("a", parse_special=True) == [1, *a]
    assert tokenizer.encode("", add_special=False, parse_special=True) == []


@BOTH
@pytest.mark.parametrize("after", [[], [2]])
def test_the_start_of_a_text(tokenizer, after, monkeypatch):
    monkeypatch.setattr(tokenizer, "_after", after)
    ids = [1, *tokenizer.encode(HELD_OUT, add_special=False), *after]
    for most in (len(ids), 5, 1):
        expected = ids if most == len(ids) else [*ids[: most - len(after)], *after]
        assert tokenizer.encode_start(HELD_OUT, most) == (expected, most < len(ids))
