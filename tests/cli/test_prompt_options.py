"""What `mlxr run` gives the model for a prompt: by its chat template, as it is, with or without special tokens."""

import json
import shutil
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr_tests.storyteller import ANSWER, BF16, PROMPT, TINY, TOKENIZER

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %} a"


def run(*options: str, model: str = "storyteller") -> list[str]:
    return ["run", model, "--host", "reference", "--temperature", "0", "--max-tokens", "4", *options]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """The bundled model's, with a chat template beside it."""
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return shutil.copy(TOKENIZER, tmp_path / TOKENIZER.name)


def test_a_chat_template_is_applied_unless_the_prompt_is_to_be_raw(
    capsys: pytest.CaptureFixture[str], tokenizer: Path
) -> None:
    shown = []
    for options in (
        ["--tokenizer", str(tokenizer), "--prompt", " once", "--system", "There was"],
        ["--template", str(tokenizer.with_name("chat_template.jinja")), "--prompt", "There was once"],
        ["--tokenizer", str(tokenizer), "--prompt", PROMPT, "--raw"],
        ["--tokenizer", str(tokenizer), "--prompt", PROMPT],
    ):
        assert main(run("--json", *options)) == 0
        told = json.loads(capsys.readouterr().out)
        shown.append((told["text"], told["prompt_tokens"]))
    assert shown[:3] == [(ANSWER, 5)] * 3
    assert shown[3][1] == 6


def test_special_tokens_are_text_unless_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for options in ([], ["--special"]):
        assert main(run("--json", "--raw", "--prompt", f"{PROMPT}</s>", *options)) == 0
        counts.append(json.loads(capsys.readouterr().out)["prompt_tokens"])
    assert counts[1] == 6 < counts[0]


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        (TEMPLATE, ["--raw", "--system", "x"], "--system is for the chat template, which --raw leaves out"),
        (TEMPLATE, ["--raw", "--template", "x"], "--template is for the chat template, which --raw leaves out"),
        ("{{ raise_exception('no') }}", [], "no. --raw gives the model the prompt as it is"),
        (None, ["--system", "x"], "the model comes without a chat template"),
    ],
)
def test_options_that_cannot_be_heeded_are_refused(
    capsys: pytest.CaptureFixture[str], tokenizer: Path, template: str | None, options: list[str], message: str
) -> None:
    place = tokenizer.with_name("chat_template.jinja")
    if template is None:
        assert main(run("--prompt", "A", *options, model=str(TINY))) == 1
    else:
        place.write_text(template)
        assert main(run("--tokenizer", str(tokenizer), "--prompt", "A", *options)) == 1
    assert message in capsys.readouterr().err


def test_a_key_is_accepted_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / BF16.name).symlink_to(BF16)
    config = json.loads(BF16.with_name("config.json").read_text()) | {"partial_rotary_factor": 0.5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["import", str(tmp_path)]) == 1
    told = "'partial_rotary_factor' = 0.5: not supported, and it may change what the model computes"
    assert told in capsys.readouterr().err
    for command in ("import", "inspect"):
        assert main([command, str(tmp_path), "--accept-key", "partial_rotary_factor"]) == 0
    shutil.copy(TOKENIZER, tmp_path)
    options = ["--host", "reference", "--max-tokens", "1", "--prompt", "A", "--accept-key", "partial_rotary_factor"]
    assert main(["run", str(tmp_path), *options]) == 0
