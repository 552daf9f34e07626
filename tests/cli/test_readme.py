"""The README says what is so: its help text is the commands' own, its specs compile, its files exist."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.spec.load import parse_spec
from mlxr.inspect.picture.draw import draw_graphs
from mlxr_tests.storyteller import ANSWER, BF16, PROMPT, ROOT, TOKENIZER

README = ROOT / "README.md"
HELP = re.compile(r"<!-- help: mlxr (.*?) -->\n```\n(.*?)```\n<!-- end -->", re.DOTALL)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse writes options otherwise from 3.13 on")
def test_help_is_the_commands_own(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "110")
    text = README.read_text()
    assert HELP.search(text)

    def written(match: re.Match[str]) -> str:
        with pytest.raises(SystemExit):
            main([*match[1].split(), "--help"])
        return f"<!-- help: mlxr {match[1]} -->\n```\n{capsys.readouterr().out}```\n<!-- end -->"

    fresh = HELP.sub(written, text)
    if request.config.getoption("--update-golden"):
        README.write_text(fresh)
    assert README.read_text() == fresh, "run pytest tests/cli/test_readme.py --update-golden"


def test_the_spec_in_the_readme_compiles() -> None:
    found = re.search(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    assert found
    assert mlxr.compile(parse_spec(found[1], "README.md")).plan.first.kernels


def test_the_python_in_the_readme_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """All of it, one after the other in one session; the folder that it names is a model with a chat template here."""
    folder = tmp_path / "Qwen3-0.6B-4bit"
    folder.mkdir()
    for path in (BF16, BF16.with_name("config.json"), TOKENIZER):
        (folder / path.name).symlink_to(path)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    monkeypatch.chdir(tmp_path)
    program = "".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    assert folder.name in program and PROMPT in program
    for text, short in [
        ("temperature=0.7)", "temperature=0.7), max_tokens=4"),
        ("max_tokens=64", "max_tokens=4"),
        ('blue?"', 'blue?", max_tokens=4'),
    ]:
        assert text in program
        program = program.replace(text, short)
    names: dict[str, Any] = {}
    exec(compile(program, str(tmp_path / "readme.py"), "exec"), names)
    out = capsys.readouterr().out
    assert out.startswith(f"{ANSWER}\n")
    assert [message["role"] for message in names["talk"].messages] == ["system", "user", "assistant"]
    assert out.endswith(names["talk"].messages[-1]["content"]) and not out.endswith("\n")


def test_files_that_the_readme_names_exist() -> None:
    text = README.read_text()
    for path in re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(
        r"`((?:tests|models|docs|benchmarks)/[\w./-]+)`", text
    ):
        assert (ROOT / path).exists(), path


def test_the_picture_in_the_readme_is_the_bundled_models(request: pytest.FixtureRequest) -> None:
    path = ROOT / "docs/graph-storyteller.svg"
    fresh = draw_graphs(mlxr.compile("storyteller"))
    if request.config.getoption("--update-golden"):
        path.write_text(fresh)
    assert path.read_text() == fresh, "run pytest tests/cli/test_readme.py --update-golden"
