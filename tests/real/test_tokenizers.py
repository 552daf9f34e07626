"""Published vocabularies give the ids that their publishers expect, and text again."""

from pathlib import Path

import pytest
import tokenizers

from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr_tests.real_files import GEMMA3, LLAMA_CPP, MINILM, TOKENIZERS, real_file, real_folder

_BETWEEN = "\n__ggml_vocab_test__\n"
EXPECTED = "bert-bge command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 llama-bpe llama-spm mpt phi-3 qwen2"
EXPECTED += " qwen35 refact starcoder"
OTHERS = "aquila baichuan gpt-neox nomic-bert-moe"
"""Vocabularies without texts of their own."""


def vocabulary(name: str) -> Path:
    return real_folder(LLAMA_CPP) / f"ggml-vocab-{name}.gguf"


def texts(name: str) -> list[str]:
    found = vocabulary(name).with_suffix(".gguf.inp").read_bytes().decode().split(_BETWEEN)
    return found if found[-1] else found[:-1]


@pytest.mark.parametrize("name", EXPECTED.split())
def test_ids_of_a_gguf_vocabulary(name: str) -> None:
    tokenizer = load_tokenizer(vocabulary(name))
    lines = vocabulary(name).with_suffix(".gguf.out").read_text().splitlines()
    for text, line in zip(texts(name), lines, strict=True):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == [int(token_id) for token_id in line.split()], text
        decoder = tokenizer.stream_decoder()
        streamed = "".join([*(decoder.push(token_id) for token_id in ids), decoder.flush()])
        assert streamed == tokenizer.decode(ids)
        if name != "bert-bge":  # WordPiece lowers letters and drops accents
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", OTHERS.split())
def test_other_gguf_vocabularies_give_their_text_again(name: str) -> None:
    tokenizer = load_tokenizer(vocabulary(name))
    for text in texts("llama-bpe"):
        ids = tokenizer.encode(text, add_special=False)
        assert name == "nomic-bert-moe" or tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_ids_of_tokenizer_json(name: str) -> None:
    """Those of its own library; and of the GGUF file that another publisher made of the same vocabulary."""
    path = real_file(TOKENIZERS[name], "tokenizer.json")
    ours, library = load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))
    gguf = {"qwen3": vocabulary("qwen2"), "llama3_1": vocabulary("llama-bpe"), "gemma3": real_file(GEMMA3, ".gguf")}
    other = load_tokenizer(gguf[name])
    for text in texts("llama-bpe"):
        ids = ours.encode(text, add_special=False)
        assert ids == library.encode(text, add_special_tokens=False).ids == other.encode(text, add_special=False), text
        assert ours.decode(ids) == text


def test_an_encoders_words() -> None:
    tokenizer = load_tokenizer(real_folder(MINILM))
    assert tokenizer.encode("The sky is blue.") == [101, 1996, 3712, 2003, 2630, 1012, 102]
