"""Sentencepiece models from their own file and from GGUF metadata give the ids of sentencepiece, and of llama.cpp."""

import json
import random

import pytest
import sentencepiece

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr_tests.vocabularies import (
    LANGUAGES,
    held_out_text,
    metadata_of_pieces,
    random_texts,
    sentencepiece_model,
    write_gguf,
)

KINDS = {
    "llama": {},
    "gemma": {"add_dummy_prefix": False, "user_defined_symbols": ["\n", "\n\n", "<table>", "▁▁"]},
    "squeezing": {"remove_extra_whitespaces": True},
}


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    """Sentencepiece itself, MLXR's from the model's file and from GGUF metadata."""
    options = KINDS[request.param]
    model = sentencepiece_model(**options)
    path = tmp_path_factory.mktemp("spm") / "tokenizer.model"
    path.write_bytes(model)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    metadata = metadata_of_pieces(
        model,
        add_space_prefix=options.get("add_dummy_prefix", True),
        remove_extra_whitespaces=options.get("remove_extra_whitespaces", False),
    )
    symbols = options.get("user_defined_symbols", [])
    for token_id, piece in enumerate(metadata["tokenizer.ggml.tokens"]):
        if piece in symbols:
            metadata["tokenizer.ggml.token_type"][token_id] = 4
    return theirs, load_tokenizer(path), tokenizer_from_gguf(metadata, "x.gguf"), metadata


def test_ids_on_held_out_text_and_random_strings(both):
    theirs, from_model, from_gguf, _ = both
    for text in [held_out_text()[:20_000], LANGUAGES, *random_texts(1000, seed=7)]:
        ids = theirs.encode(text)
        assert from_model.encode(text) == [1, *ids]
        assert from_gguf.encode(text) == [1, *ids]
        assert from_model.decode(ids) == from_gguf.decode(ids) == theirs.decode(ids)


def test_streams_are_the_decoded_text(both):
    theirs, *ours, _ = both
    chance = random.Random(8)
    for _ in range(1000):
        ids = [chance.randrange(1, theirs.vocab_size()) for _ in range(chance.randrange(12))]
        for tokenizer in ours:
            decoder = tokenizer.stream_decoder()
            assert "".join([*(decoder.push(i) for i in ids), decoder.flush()]) == theirs.decode(ids)
    assert [tokenizer.decode([0]) for tokenizer in ours] == [theirs.decode([0]), ""]  # the latter as in llama.cpp


def test_ids_with_control_tokens_are_those_of_llama_cpp(both, tmp_path, request):
    if "squeezing" in request.node.name:
        pytest.skip("llama.cpp does not squeeze spaces in this kind of vocabulary")
    llama_cpp = pytest.importorskip("mlxr_tests.llama_cpp", exc_type=ImportError)
    _, _, ours, metadata = both
    theirs = llama_cpp.llama_cpp_ids(write_gguf(tmp_path / "x.gguf", metadata))
    for text in ["<s>[INST] Hi! [/INST] Hello.</s><s>[INST] x [/INST]", "</s>", " <s> ", *random_texts(300, seed=9)]:
        if "\0" not in text:
            assert ours.encode(text, add_special=False, parse_special=True) == theirs(text, True), text


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model())
    return tmp_path


def added(*tokens, start=1200, special=True):
    return {str(start + i): {"content": token, "special": special} for i, token in enumerate(tokens)}


def test_tokens_that_tokenizer_config_adds(folder):
    config = {
        "added_tokens_decoder": added("<s>", start=1) | added("<|user|>", "<|end|>") | {},
        "eos_token": "<|end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.vocab_size, tokenizer.required_size) == (1202, 1200)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (1, 1201, {1201})
    ids = tokenizer.encode("<|user|>a<|end|>", add_special=False, parse_special=True)
    assert (ids[0], ids[-1]) == (1200, 1201)
    assert tokenizer.decode(ids) == "a"
    assert not {1200, 1201} & set(tokenizer.encode("<|user|>a<|end|>"))
    config["added_tokens_decoder"] = added("<tool>", special=False)
    config["eos_token"] = None
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(folder)
    assert 1200 in tokenizer.encode("a<tool>b")
    assert tokenizer.decode(tokenizer.encode("a<tool>b")) == "a<tool>b"


def test_added_tokens_with_a_gap(folder):
    plain = load_tokenizer(folder).encode(LANGUAGES)
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added("<x>", start=1300)}))
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.vocab_size, tokenizer.required_size) == (1301, 1200)
    assert tokenizer.encode("<x>", parse_special=True) == [1, 1300]
    assert tokenizer.encode(LANGUAGES) == plain
    assert tokenizer.decode(range(3, 1301)) == load_tokenizer(folder / "tokenizer.model").decode(range(3, 1200))
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added("<x>", start=1 << 30)}))
    with pytest.raises(TokenizerError, match=r"adds a token of the id 1073741824 to the 1200 of tokenizer\.model"):
        load_tokenizer(folder)


def test_tokens_of_added_tokens_json_and_pieces_with_another_name(folder):
    """InternLM 2 gives unused pieces the names of its chat tokens."""
    unused = load_tokenizer(folder).token_text(1150)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": added("<|im_start|>", start=1150)})
    )
    (folder / "added_tokens.json").write_text(json.dumps({"<|user|>": 1200, "<tool>": 1201}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["<|user|>"]}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("<|im_start|><|user|>", add_special=False, parse_special=True) == [1150, 1200]
    assert 1150 not in tokenizer.encode(f"{unused}<|im_start|><|user|>".replace("▁", " "))
    assert 1201 in tokenizer.encode("a<tool>")
    assert [tokenizer.is_control(token_id) for token_id in (1150, 1200, 1201)] == [True, True, False]


def test_text_after_control_tokens_without_legacy_behaviour(folder):
    """As `LlamaTokenizer(legacy=False)`: a space is put before the text, and not before the text after a token."""
    text, model = "one<s>two", sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    assert load_tokenizer(folder).encode(text, False, True) == [*model.encode("one"), 1, *model.encode("two")]
    (folder / "tokenizer_config.json").write_text(json.dumps({"legacy": False}))
    ids = load_tokenizer(folder).encode(text, False, True)
    assert ids[: len(model.encode("one")) + 1] == [*model.encode("one"), 1]
    assert load_tokenizer(folder).decode(ids) == "onetwo"


def test_flags_and_ends_of_the_files_beside(folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False, "add_eos_token": True}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("") == [2]
    assert not tokenizer.adds_bos
    assert tokenizer.eos_ids == {2, 9}
