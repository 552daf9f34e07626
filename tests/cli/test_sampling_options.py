"""The options of sampling on the command line: what they mean, and what is told of a mistake."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from mlxr.cli import main
from mlxr.cli.sampling_options import add_sampling_arguments, sampling_of
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.sampling import Sampling


def parsed(*arguments: str) -> Sampling:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--max-tokens", type=int)
    add_sampling_arguments(parser)
    return sampling_of(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], {}),
        (["--temperature", "0.7", "--top-k", "5", "--seed", "3"], {"temperature": 0.7, "top_k": 5, "seed": 3}),
        (["--typical-p", "0.9", "--presence-penalty", "-1"], {"typical_p": 0.9, "presence_penalty": -1.0}),
        (["--dry-multiplier", "0.8", "--dry-breaker", "a"], {"dry_multiplier": 0.8, "dry_breakers": ["a"]}),
        (["--logit-bias", "5=-100", "--logit-bias", "7=1.5"], {"logit_bias": {5: -100.0, 7: 1.5}}),
        (["--stop", "END", "--stop", "\n", "--include-stop"], {"stop": ["END", "\n"], "include_stop": True}),
        (["--max-tokens", "9", "--min-tokens", "4"], {"max_tokens": 9, "min_tokens": 4}),
        (["--choice", "yes", "--choice", "no"], {"choice": ["yes", "no"]}),
        (["--regex", "[a-z]+"], {"regex": "[a-z]+"}),
        (["--json-schema", "file"], {"json_schema": '{"type": "null"}'}),
        (["--grammar", "file"], {"grammar": '{"type": "null"}'}),
    ],
    ids=str,
)
def test_meaning(
    arguments: list[str], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text('{"type": "null"}')
    assert parsed(*arguments) == Sampling(**{"max_tokens": None, **options})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--typical-p", "2"], "--typical-p is 2.0, expected a number greater than 0"),
        (["--dry-base", "0"], "--dry-base is 0.0, expected"),
        (["--dry-breaker", ""], "--dry-breaker has an empty text"),
        (["--logit-bias", "5=101"], r"--logit-bias\[5\] is 101.0, expected a number from -100 to 100"),
        (["--max-tokens", "9", "--min-tokens", "10"], "--min-tokens is 10, more than --max-tokens, which is 9"),
        (["--regex", "a", "--choice", "b"], "--regex and --choice are given; an answer follows one of them"),
        (["--json-schema", "no/such"], "--json-schema no/such: cannot be read: No such file or directory"),
        (["--grammar", "bytes"], "--grammar bytes is not utf-8"),
    ],
    ids=str,
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bytes").write_bytes(b"\xff")
    with pytest.raises(RequestError, match=message):
        parsed(*arguments)


@pytest.mark.parametrize("text", ["5", "=1", "5=", "five=1", "5=x"])
def test_a_bias_that_is_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentError, match="is not ID=VALUE, such as"):
        parsed("--logit-bias", text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], " I was sitting in"),
        (["--stop", "sit"], " I was "),
        (["--stop", "sit", "--include-stop"], " I was sit"),
        (["--stop", "was", "--min-tokens", "4"], " I was sitting in"),
        (["--choice", " you"], " you"),
    ],
    ids=str,
)
def test_they_reach_the_engine(options: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "storyteller", "--host", "reference", "--prompt", "Once upon a time", "--max-tokens", "4"]
    assert main([*run, *options]) == 0
    assert capsys.readouterr().out == f"{text}\n"
