"""Tokenizers with regular expressions that take for ever are refused before they are used; published ones are not."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer import tokenizer_worker, try_steps
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.pre_tokenizers import PRE_TOKENIZERS


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": "b"}


def written(folder: Path, **parts: Any) -> Path:
    vocabulary = {chr(ord("a") + i): i for i in range(26)}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="a"))
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(model.to_str()) | parts))
    return path


FUSED = {"type": "Sequence", "decoders": [{"type": "Fuse"}, replace(r"(x|x|x)+y")]}
"""A decoder that sees the whole text, not token by token."""


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("pre_tokenizer", split("(a+)+$")),
        pytest.param("normalizer", replace(r"(?:[a-z]+\s?)+x"), marks=pytest.mark.long),
        pytest.param("decoder", FUSED, marks=pytest.mark.long),
    ],
)
def test_an_expression_that_goes_back_without_end_is_refused(key: str, part: Any, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=rf"its {key} cannot be used: .* the library gives up on a regular expr"):
        load_tokenizer(written(tmp_path, **{key: part}))


def test_steps_that_take_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(try_steps, "CPU_SECONDS", 0.001)
    with pytest.raises(TokenizerError, match=r"made: its steps .* it took more than 0\.001 s of CPU time"):
        try_steps.try_steps([("pre_tokenizer", split("a|b"))], "made")


def test_what_is_not_known_is_tried_and_then_works(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(written(tmp_path, pre_tokenizer=split("ab|c")))
    assert tokenizer.encode("abc") == [0, 1, 2]
    assert tokenizer_worker.IS_SEALED


def test_known_steps_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(try_steps, "LimitedProcess", None)
    known = [
        {"type": "Sequence", "pretokenizers": [*map(split, kind.patterns), {"type": "ByteLevel", "use_regex": False}]}
        for kind in PRE_TOKENIZERS.values()
    ]
    spaces = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, replace(" {2,}") | {"content": " "}]}
    try_steps.try_steps([("pre_tokenizer", part) for part in known] + [("normalizer", spaces)], "made")
    with pytest.raises(TypeError, match="not callable"):
        try_steps.try_steps([("pre_tokenizer", split("a"))], "made")


@pytest.mark.long
def test_published_expressions_would_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(try_steps, "_known_patterns", frozenset)
    patterns = {pattern for kind in PRE_TOKENIZERS.values() for pattern in kind.patterns}
    for pattern in patterns:
        try_steps.try_steps([("pre_tokenizer", split(pattern))], "made")
