"""What the README and the pages say of files and figures is so."""

import re
from pathlib import Path

import pytest

import mlxr
from mlxr.inspect.picture.draw import draw_graphs
from mlxr_tests.storyteller import ROOT

README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges and MkDocs make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_headings_that_a_page_links_to_exist(page: Path) -> None:
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
        linked = page.parent / path if path else page
        assert linked.exists(), path
        assert not anchor or anchor in anchors(linked), f"{path}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    for path in re.findall(
        r"`((?:tests|models|docs|benchmarks|templates)/[\w./-]+)`", page.read_text(encoding="utf-8")
    ):
        assert "NAME" in path or (ROOT / path).exists(), path


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


def test_speeds_in_the_readme_are_recorded_ones() -> None:
    """Each pair of figures stands in one row of what the benchmarks wrote."""
    table = re.search(r"## How fast it is\n(.*?)\n## ", README.read_text(encoding="utf-8"), re.DOTALL)
    assert table
    files = [ROOT / "benchmarks/RESULTS.md", ROOT / "benchmarks/NOTES-gpu.md"]
    recorded = "\n".join(path.read_text(encoding="utf-8") for path in files)
    rows = [set(re.findall(r"\d[\d.]*", row)) for row in recorded.splitlines() if row.startswith("|")]
    found = re.findall(r"^\| (?:TinyLlama|Llama).*$", table[1], re.MULTILINE)
    assert len(found) >= 5
    for line in found:
        figures = re.findall(r"\d[\d.]*", line.split("|", 3)[3])
        assert len(figures) == 6
        for ours, theirs in zip(figures[::2], figures[1::2], strict=True):
            assert any({ours, theirs} <= row for row in rows), f"{line}: {ours}, {theirs}"


def test_the_picture_of_the_graph_is_the_bundled_models(request: pytest.FixtureRequest) -> None:
    path = ROOT / "docs/graph-storyteller.svg"
    fresh = draw_graphs(mlxr.compile("storyteller"))
    if request.config.getoption("--update-golden"):
        path.write_text(fresh)
    assert path.read_text() == fresh, "run pytest tests/docs/test_pages.py --update-golden"
