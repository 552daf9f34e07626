"""`--thinking`, `--thinking-budget` and `--chat-template-kwargs` of `mlxr run` and `mlxr chat`, and of a server."""

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr.cli.reasoning_options import add_reasoning_arguments, reasoning_of
from mlxr.runtime.engine.reasoning import Reasoning
from mlxr_tests.storyteller import TINY

THINKS = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}"
    "{% if enable_thinking is not false %}<think>\n{% endif %}{% endif %}{{ mood }}"
)

WHY = ": the chat template knows no reasoning"


@pytest.fixture
def template(tmp_path: Path) -> list[str]:
    """A template that opens a thought, unless it is told not to."""
    path = tmp_path / "thinks.jinja"
    path.write_text(THINKS)
    return ["--template", str(path)]


def written(capsys: pytest.CaptureFixture[str], template: list[str], *options: str) -> str:
    arguments = ["--host", "reference", "--temperature", "0", "--max-tokens", "20", *template, *options]
    assert main(["run", str(TINY), "--prompt", "Once upon a time", *arguments]) == 0
    return capsys.readouterr().out


def test_run_and_chat_close_a_thought_at_its_budget(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: list[str]
) -> None:
    free = written(capsys, template)
    assert "</think>" not in free
    some = written(capsys, template, "--thinking-budget", "3")
    thought, _, answer = some.partition("\n</think>\n\n")
    assert thought and free.startswith(thought) and answer.strip()
    assert written(capsys, template, "--thinking-budget", "0").startswith("\n</think>\n\n")
    off = written(capsys, template, "--no-thinking")
    assert off == written(capsys, template, "--chat-template-kwargs", '{"enable_thinking": false}') != free
    assert written(capsys, template, "--no-thinking", "--chat-template-kwargs", '{"mood": " sad"}') != off
    monkeypatch.setattr(sys, "stdin", io.StringIO("Once upon a time\n"))
    options = ["--host", "reference", "--temperature", "0", "--max-tokens", "20", *template, "--thinking-budget", "3"]
    assert main(["chat", str(TINY), *options]) == 0
    assert capsys.readouterr().out == some


def test_what_has_no_effect_is_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: list[str]
) -> None:
    (tmp_path / "plain.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    plain = ["--template", str(tmp_path / "plain.jinja")]
    budget, run = ["--thinking-budget", "3"], ["run", str(TINY), "--host", "reference", "--max-tokens", "1"]
    for options, told in (
        ([*plain, *budget], "a budget of reasoning has"),
        ([*plain, "--thinking"], "switching reasoning on or off has"),
        ([*plain, "--no-thinking", *budget], "a budget of reasoning and switching reasoning on or off have"),
        ([*template, "--no-thinking", *budget], ""),
        (plain, ""),
    ):
        assert main([*run, "--prompt", "Once", *options]) == 0
        assert without_effect(capsys) == ([f"note: {told} no effect{WHY}"] if told else [])
    monkeypatch.setattr(sys, "stdin", io.StringIO("Once\nOnce\n"))
    assert main(["chat", str(TINY), "--host", "reference", "--max-tokens", "1", *plain, *budget]) == 0
    assert without_effect(capsys) == [f"note: a budget of reasoning has no effect{WHY}"]


def without_effect(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "no effect" in line]


def test_what_is_refused(capsys: pytest.CaptureFixture[str], template: list[str]) -> None:
    run = ["run", str(TINY), "--host", "reference", "--prompt", "x"]
    assert main([*run, "--raw", "--thinking-budget", "3"]) == 1
    assert "--thinking-budget is for the chat template, which --raw leaves out" in capsys.readouterr().err
    for option, value, message in (
        ("--thinking-budget", "-3", "is not a whole number of tokens"),
        ("--chat-template-kwargs", "{", "is not JSON"),
        ("--chat-template-kwargs", "[1]", "is not a JSON object"),
        ("--chat-template-kwargs", '{"messages": []}', "messages is not a variable of the template's own"),
    ):
        with pytest.raises(SystemExit):
            main([*run, *template, f"{option}={value}"])
        assert message in capsys.readouterr().err


def test_what_they_say() -> None:
    parser = argparse.ArgumentParser()
    add_reasoning_arguments(parser)
    assert reasoning_of(parser.parse_args([])) == Reasoning()
    words = ["--no-thinking", "--thinking-budget", "9", "--chat-template-kwargs", json.dumps({"a": 1})]
    server = reasoning_of(parser.parse_args(words))
    assert server == Reasoning({"a": 1, "enable_thinking": False}, 9)
    assert Reasoning({"enable_thinking": True}, 0).over(server) == Reasoning({"a": 1, "enable_thinking": True}, 0)
    assert Reasoning().over(server) == server
