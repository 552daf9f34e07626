"""Vocabularies of every kind in GGUF files give the ids of llama.cpp, recorded, and of the libraries they come from."""

import functools
import json
from pathlib import Path

import pytest
import sentencepiece

from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr.runtime.tokenizer.model_proto import UNIGRAM
from mlxr_tests.made_vocabularies import TEXTS, made_vocabularies
from mlxr_tests.vocabularies import LANGUAGES, metadata_of_pieces, random_texts, sentencepiece_model

RECORDED = json.loads((Path(__file__).parents[2] / "data/llama_cpp_ids.json").read_text(encoding="utf-8"))
made = functools.cache(made_vocabularies)


@pytest.mark.parametrize("name", RECORDED)
def test_ids_are_those_of_llama_cpp(name):
    tokenizer = tokenizer_from_gguf(made()[name], "x.gguf")
    assert [*RECORDED[name]] == [*TEXTS]
    for text, (plain, special, around) in RECORDED[name].items():
        # In vocabularies of PLaMo 2, llama.cpp reads the names of control tokens in any text.
        if name != "plamo2" or not any(control in text for control in tokenizer.control_tokens):
            assert tokenizer.encode(text, add_special=False) == plain, text
        assert tokenizer.encode(text, add_special=False, parse_special=True) == special, text
        assert tokenizer.encode(text, parse_special=True) == around, text
        stream = tokenizer.stream_decoder()
        assert "".join([*map(stream.push, around), stream.flush()]) == tokenizer.decode(around)


@pytest.mark.parametrize("name", ["llama", "runs of spaces", "plamo2", "gemma4"])
def test_texts_come_back(name):
    tokenizer = tokenizer_from_gguf(made()[name], "x.gguf")
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("squeezes", [False, True])
def test_unigram_models_with_a_table_of_characters(squeezes):
    options = {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc", "byte_fallback": False}
    model = sentencepiece_model(**options, remove_extra_whitespaces=squeezes, unk_id=2, eos_id=1, bos_id=-1, pad_id=0)
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(model)
    assert proto.trainer_spec.model_type == UNIGRAM
    metadata = metadata_of_pieces(
        model,
        precompiled_charsmap=[*proto.normalizer_spec.precompiled_charsmap],
        remove_extra_whitespaces=squeezes,
        add_space_prefix=True,
    )
    metadata["tokenizer.ggml.model"] = "t5"
    del metadata["tokenizer.ggml.bos_token_id"]
    ours, theirs = tokenizer_from_gguf(metadata, "x.gguf"), sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in [LANGUAGES, *random_texts(300, seed=5)]:
        assert ours.encode(text) == [*theirs.encode(text), 1]
