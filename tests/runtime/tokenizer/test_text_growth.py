"""Tokenizers whose steps make a text long: none gets the memory for it, and real ones are not refused."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer import text_growth
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr_tests.vocabularies import sentencepiece_model

LIMIT = 1 << 20
"""In place of 256 MiB: what passes by mistake does not take all of the test's memory."""


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_growth, "MOST_BYTES", LIMIT)


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def in_sequence(*steps: dict[str, Any], of: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", of: [*steps]}


def precompiled(trie_bytes: int, rest: bytes) -> dict[str, Any]:
    charsmap = struct.pack("<I", trie_bytes) + rest
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}


def written(folder: Path, **parts: Any) -> Path:
    """A tokenizer.json with a small vocabulary and these parts."""
    vocabulary = {chr(ord("a") + i): i for i in range(26)}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="a"))
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(model.to_str()) | parts))
    return path


CHAIN = in_sequence(*(replace(a, b * 22) for a, b in zip("abcdef", "bcdefg", strict=True)))
SHORT_CHAIN = in_sequence(*(replace(a, b * 22) for a, b in zip("ab", "bc", strict=True)))


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": CHAIN},
        {"normalizer": in_sequence(SHORT_CHAIN, in_sequence(SHORT_CHAIN))},
        {"normalizer": in_sequence(*[{"type": "Replace", "pattern": {"Regex": "x*"}, "content": "y" * 60}] * 3)},
        {"normalizer": in_sequence(*[{"type": "Prepend", "prepend": "p" * 60}] * 3)},
        {"normalizer": precompiled(4, b"\0\0\0\0" + b"z" * 4000)},
        {
            "pre_tokenizer": in_sequence(
                *[{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}] * 12,
                of="pretokenizers",
            )
        },
    ],
    ids=["replaced", "nested", "expression", "prepended", "charsmap", "byte level"],
)
def test_steps_that_multiply_are_refused_at_load(parts: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.json: its own tokens: .* the tokenizer's own steps could make"
    ):
        load_tokenizer(written(tmp_path, **parts))


@pytest.mark.parametrize("trie_bytes", [0xFFFFFFFC, 4000, 3], ids=["8 GB", "more than there is", "no whole units"])
def test_a_charsmap_whose_size_is_false(trie_bytes: int, tmp_path: Path) -> None:
    """The library takes memory for the trie that it says to have before it reads it."""
    path = written(tmp_path, normalizer=in_sequence(precompiled(trie_bytes, b"\0" * 2000)))
    with pytest.raises(TokenizerError, match=rf"says that {trie_bytes} of them are a trie"):
        load_tokenizer(path)


def test_keys_in_other_spellings_are_found(tmp_path: Path) -> None:
    path = written(tmp_path, normalizer=CHAIN)
    path.write_text(path.read_text().replace('"normalizer"', '"normali\\u007aer"'))
    assert json.loads(path.read_text())["normalizer"] == CHAIN
    with pytest.raises(TokenizerError, match="its own tokens"):
        load_tokenizer(path)


def test_of_two_normalizers_the_worse_one_counts(tmp_path: Path) -> None:
    """Which one of them a reader takes is its own affair."""
    path = written(tmp_path, normalizer=CHAIN)
    path.write_text(path.read_text()[:-1] + ', "normalizer": null}')
    with pytest.raises(TokenizerError, match="its own tokens"):
        load_tokenizer(path)


def test_a_longer_text_is_refused_where_a_short_one_is_read(tmp_path: Path) -> None:
    chain = in_sequence(replace("a", "b" * 10), replace("b", "c" * 20))
    tokenizer = load_tokenizer(written(tmp_path, normalizer=chain))
    assert len(tokenizer.encode("a")) == 200
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_parts([text])):
        with pytest.raises(TokenizerError, match=r"the text: 6000 bytes, of which .* could make 1\.2e\+06"):
            encode("a" * 6000)


@pytest.mark.parametrize(
    "steps",
    [
        [replace("a", "b" * 100), replace("b", "c" * 1000)],
        [{"type": "BPEDecoder", "suffix": ""}] * 20,
        [{"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 100}] * 3,
    ],
    ids=["replaced", "spaced", "expression"],
)
def test_decoders_that_multiply_are_refused(steps: list[dict[str, Any]], tmp_path: Path) -> None:
    path = written(tmp_path, decoder=in_sequence(*steps, of="decoders"))
    with pytest.raises(TokenizerError, match=r"its decoder could make .* bytes of a token"):
        load_tokenizer(path)


def test_a_sentencepiece_model_with_a_long_replacement(tmp_path: Path) -> None:
    """A real table of characters passes, and its longest replacement counts."""
    tokenizer = SentencepieceTokenizer(
        sentencepiece_model(model_type="unigram", normalization_rule_name="nmt_nfkc"), "made"
    )
    assert tokenizer.encode("a") and tokenizer.encode("x" * 5000)
    with pytest.raises(TokenizerError, match=r"the text: 20000 bytes, of which .* 1\.98e\+06"):
        tokenizer.encode("x" * 20_000)


@pytest.mark.parametrize(
    "steps",
    [
        [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")],
        [{"type": "NFC"}],
        [{"type": "NFKC"}, {"type": "Lowercase"}],
        [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, replace("``", '"')],
    ],
    ids=["llama", "qwen", "folded", "t5"],
)
def test_steps_that_real_tokenizers_have_leave_room_for_megabytes(steps: list[dict[str, Any]]) -> None:
    factor = text_growth.growth(in_sequence(*steps), "a file")
    text_growth.check_growth(LIMIT // 20, factor)
