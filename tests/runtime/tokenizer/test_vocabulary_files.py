"""Folders with vocab.json and merges.txt, vocab.txt or tekken.json: ids are those of libraries with the same tokens."""

import base64
import json

import pytest
from tokenizers.implementations import BertWordPieceTokenizer

from mlxr.compiler.errors import NoTokenizerError, TokenizerError
from mlxr.runtime.tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.token_bytes import byte_alphabet
from mlxr_tests.vocabularies import CONTROL, LANGUAGES, WORDS, byte_level, composed, held_out_text, random_texts

TEXTS = [LANGUAGES, *LANGUAGES.splitlines(keepends=True), *random_texts(50, seed=4), "", " ", "<|im_start|> a"]


@pytest.mark.parametrize(("kind", "words"), [("GPT2Tokenizer", "gpt-2"), ("Qwen2Tokenizer", "qwen2"), (None, "gpt-2")])
def test_vocab_json_with_merges_txt(tmp_path, kind, words):
    library = byte_level(WORDS[words])
    library.model.save(str(tmp_path))
    own = library.get_vocab_size()
    added = {str(i): {"content": name, "special": True} for i, name in enumerate(CONTROL)}
    added[str(own - 1)] = {"content": "<think>", "special": False}
    config = {"tokenizer_class": kind, "added_tokens_decoder": added, "eos_token": CONTROL[0]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load_tokenizer(tmp_path)
    assert (ours.vocab_size, ours.eos_id) == (own, 0)
    for text, normal in zip(TEXTS, composed(TEXTS) if words == "qwen2" else TEXTS, strict=True):
        for parse in (False, True):
            library.encode_special_tokens = not parse
            ids = library.encode(normal, add_special_tokens=False).ids
            assert ours.encode(text, parse_special=parse) == ids
            assert ours.decode(ids) == library.decode(ids)


def test_vocab_txt(tmp_path):
    theirs = BertWordPieceTokenizer()
    theirs.train_from_iterator(held_out_text()[:30_000].splitlines(), vocab_size=800, show_progress=False)
    theirs.save_model(str(tmp_path))
    theirs = BertWordPieceTokenizer(str(tmp_path / "vocab.txt"))
    ours = load_tokenizer(tmp_path)
    for text in TEXTS:
        ids = theirs.encode(text).ids
        assert ours.encode(text, parse_special=True) == ids
        assert ours.decode(ids) == theirs.decode(ids)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(TokenizerError, match=r"vocab\.txt: lacks one of \[UNK\], \[SEP\] and \[CLS\]"):
        load_tokenizer(tmp_path)


def test_tekken_json(tmp_path):
    """Whose special tokens come first, as those of the library do."""
    library = byte_level(WORDS["gpt-4o"], ignore_merges=True)
    letters, size = byte_alphabet(), library.get_vocab_size() - 1
    tokens = [bytes(map(letters.__getitem__, library.id_to_token(i))) for i in range(len(CONTROL), size)]
    document = {
        "config": {"pattern": WORDS["gpt-4o"], "default_vocab_size": size, "default_num_special_tokens": len(CONTROL)},
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(token).decode()} for i, token in enumerate(tokens)],
        "special_tokens": [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(CONTROL)],
    }
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(document))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": CONTROL[1], "eos_token": CONTROL[0]}))
    ours = load_tokenizer(tmp_path)
    assert (ours.vocab_size, ours.bos_id, ours.eos_id) == (size, 1, 0)
    for text in TEXTS:
        if "<think>" not in text:
            ids = library.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, parse_special=True) == [1, *ids]
            assert ours.decode(ids) == library.decode(ids)
    for wrong in ({}, document | {"vocab": [{"token_bytes": "?"}]}, document | {"config": {}}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(TokenizerError, match=r"tekken\.json: not as Mistral's tekken\.json is"):
            load_tokenizer(tmp_path)


def test_half_of_a_vocabulary_is_none(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(NoTokenizerError):
        load_tokenizer(tmp_path)
