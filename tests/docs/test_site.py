"""The site of the documentation, in a browser: no page asks another machine for anything. `make docs` builds it."""

import functools
import hashlib
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from check_site import fetched_from_elsewhere
from make_pictures import diagram
from mlxr_tests.storyteller import ROOT

SITE = ROOT / "build/site"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    if not (SITE / "index.html").exists():
        pytest.skip("there is no site: make docs builds it")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.long
def test_no_page_asks_elsewhere(url: str) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("MLXR_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    asked, problems = set[str](), list[str]()
    with api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        except api.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        page = browser.new_page()
        page.on("request", lambda request: asked.add(request.url))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        pages = sorted(SITE.rglob("index.html"))
        for file in pages:
            page.goto(f"{url}/{file.parent.relative_to(SITE)}/".replace("/./", "/"))
            assert page.locator("article h1").count() == 1, file
        page.get_by_role("textbox", name="Search").fill("perplexity")
        page.locator(".md-search-result__item").first.wait_for()
        browser.close()
    assert len(pages) > 25 and not problems
    assert [address for address in asked if not address.startswith((f"{url}/", "data:", "blob:"))] == []


def test_the_check_notices(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<link rel="canonical" href="https://a.example"><link rel="stylesheet" href="//b.example/x.css">'
        '<a href="https://c.example">c</a><script src="https://d.example/x.js"></script><img src="own.png">'
        "<style>@import 'https://e.example/x.css'; p {background: url(own.png)}</style>"
    )
    (tmp_path / "x.css").write_text("@font-face {src: url(https://f.example/x.woff2)}")
    found = [address for _, address in fetched_from_elsewhere(tmp_path)]
    assert [address.split("//")[1][0] for address in found] == ["b", "d", "e", "f"]


def test_the_sites_diagram_is_that_of_the_map() -> None:
    first_line = (ROOT / "docs/stages.svg").read_text(encoding="utf-8").splitlines()[0]
    assert hashlib.sha256(diagram().encode()).hexdigest() in first_line, "python docs/make_pictures.py mermaid.min.js"
