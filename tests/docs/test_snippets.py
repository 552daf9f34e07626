"""Every snippet of the documentation runs, in the order of its page (`mlxr_tests.snippets` says how)."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from mlxr_tests.snippets import is_printed, session, snippets
from mlxr_tests.storyteller import ROOT

SHORT = {"README.md"}
"""Pages whose snippets take less than a second or two."""

OTHERS = (
    "models/README.md",
    "models/storyteller/README.md",
    "templates/README.md",
    "tests/README.md",
    "examples/README.md",
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / name for name in OTHERS)])
RUN = {"sh", "python", "yaml", "json"}
READ = {"text", "mermaid", "lark", "c", "metal", "jinja"}
"""Languages of blocks that are there to be read."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if name(page) in SHORT else [pytest.mark.long], id=name(page))
        for page in PAGES
        if any(snippet.language in RUN for snippet in snippets(page))
    ],
)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with session(tmp_path, page) as running:
        printed = ""
        for snippet in snippets(page):
            where = f"{page.name}:{snippet.line}"
            if snippet.is_output:
                assert is_printed(snippet.text, printed), f"{where}: {printed}"
            elif not (snippet.why_not or (snippet.needs and find_spec(snippet.needs) is None)):
                printed = running.run(snippet)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_snippet_has_a_language(page: Path) -> None:
    for snippet in snippets(page):
        assert snippet.language in RUN | READ, f"{page.name}:{snippet.line}"


def test_the_runner_notices(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n\n<!-- not run: there is no it -->\n```sh\nit\n```\n"
    )
    first, output, last = snippets(page)
    assert (first.line, first.language, first.why_not) == (2, "python", "")
    assert (output.is_output, last.is_output, last.why_not) == (True, False, "there is no it")
    (tmp_path / "run").mkdir()
    with session(tmp_path / "run", page) as running:
        assert is_printed(output.text, running.run(first)) and not is_printed("4", running.run(first))
        with pytest.raises(AssertionError):
            running.run(last)
    assert is_printed("a ... c", "a b\nc\n") and not is_printed("a ... c", "a b d")
