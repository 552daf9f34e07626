"""`mlxr tokenize`, and where it and `mlxr run` read prompts from."""

import json
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr_tests.storyteller import ANSWER, PROMPT, ROOT, TOKENIZER

RUN = ["run", "storyteller", "--host", "reference", "--temperature", "0"]


@pytest.mark.parametrize("model", ["storyteller", str(TOKENIZER)])
def test_it_shows_each_token(capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert main(["tokenize", model, "--prompt", "Once upon"]) == 0
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()] == [
        ["1", "'<s>'"],
        ["3253", "'\u2581Once'"],
        ["587", "'\u2581upon'"],
    ]
    assert shown.err == "3 tokens of 9 characters\n"


def test_ids_and_json_and_special_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", "storyteller", "--prompt", "Once upon", "--ids"]) == 0
    assert capsys.readouterr().out == "1 3253 587\n"
    assert main(["tokenize", "storyteller", "--prompt", "<s>Once", "--special", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "count": 3,
        "ids": [1, 1, 3253],
        "tokens": ["<s>", "<s>", "\u2581Once"],
    }


def test_a_prompt_may_be_in_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(f"{PROMPT}\n")
    assert main([*RUN, "--file", str(path), "--max-tokens", "4"]) == 0
    assert capsys.readouterr().out == f"{ANSWER}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\n", "holds no text"),
        (b"a\xff", "is not utf-8: invalid start byte at byte 1"),
    ],
)
def test_a_file_that_holds_no_prompt_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "prompt.txt"
    if content is not None:
        path.write_bytes(content)
    assert main(["tokenize", "storyteller", "--file", str(path)]) == 1
    shown = capsys.readouterr().err
    assert f"--file {path}" in shown
    assert message in shown


def test_a_file_that_is_far_too_long_is_refused_before_it_is_encoded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("word " * 200_000)
    monkeypatch.setattr(SentencepieceTokenizer, "_encode", None)
    assert main([*RUN, "--file", str(path)]) == 1
    assert " characters, so 71429 tokens or more; the context is 1024" in capsys.readouterr().err


def test_an_answer_may_go_on_beyond_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(self: SentencepieceTokenizer, *_: object) -> None:
        self.bos_id, self.eos_id, self.eos_ids = 1, 2, frozenset(range(4096))

    monkeypatch.setattr(SentencepieceTokenizer, "_set_special", ended)
    counts = []
    for extra in ([], ["--ignore-eos"]):
        assert main([*RUN, "--prompt", "Once upon a time", "--max-tokens", "3", "--json", *extra]) == 0
        counts.append(len(json.loads(capsys.readouterr().out)["token_ids"]))
    assert counts == [1, 3]


@pytest.mark.parametrize("model", ["llama-3.2-1b", str(ROOT / "models/storyteller/storyteller.yaml")])
def test_what_has_no_tokenizer_is_told(capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert main(["tokenize", model, "--prompt", "a"]) == 1
    assert f"{model} comes without a tokenizer: name its tokenizer.json" in capsys.readouterr().err
