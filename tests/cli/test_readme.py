"""The README says what is so: its help text is the commands' own, its specs compile, its files exist."""

import os
import re
import sys
from pathlib import Path

import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.spec.load import parse_spec
from mlxr.inspect.picture.draw import draw_graphs
from mlxr_tests.storyteller import ROOT

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
    assert mlxr.compile(parse_spec(found[1], "README.md")).plan.kernels


def test_the_python_in_the_readme_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found
    monkeypatch.chdir(ROOT)
    program = (
        found[1].replace("temperature=0.7)", "temperature=0.7), max_tokens=4").replace("max_tokens=64", "max_tokens=4")
    )
    exec(compile(program, str(tmp_path / "readme.py"), "exec"), {})
    assert capsys.readouterr().out.startswith(" I was sitting in\n")


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
