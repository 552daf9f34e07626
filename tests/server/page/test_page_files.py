"""The page's files without a browser: what is served, with which headers, and that nothing comes from elsewhere."""

import hashlib
import re
from importlib import resources
from pathlib import Path
from posixpath import join, normpath

import pytest

from mlxr.server.page.page_files import TYPES, page_files
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.settings import ServerSettings
from mlxr_tests.running_server import RunningServer, running_server, tiny_source

STATIC = Path(str(resources.files("mlxr.server.page"))) / "static"
OWN = [path for path in STATIC.rglob("*") if path.is_file() and "vendored" not in path.parts]


def policy(text: str) -> dict[str, list[str]]:
    return {name: values for name, *values in (rule.split() for rule in text.split(";"))}


def test_the_page_and_its_headers(server: RunningServer) -> None:
    page = server.http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8" and "{{" not in page.text
    rules = policy(page.headers["content-security-policy"])
    assert rules["default-src"] == ["'none'"] and rules["script-src"] == rules["style-src"] == ["'self'"]
    assert rules["base-uri"] == rules["frame-ancestors"] == rules["form-action"] == ["'none'"]
    assert rules["require-trusted-types-for"] == ["'script'"] and page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-cache"
    again = server.http.get("/", headers={"if-none-match": page.headers["etag"]})
    assert again.status_code == 304 and not again.content
    assert server.http.get("/", headers={"if-none-match": '"other"'}).status_code == 200


def test_all_that_the_page_loads_is_there(server: RunningServer) -> None:
    page = server.http.get("/")
    texts = page.text + server.http.get("/docs").text
    linked = {link for link in re.findall(r'(?:href|src)="(/[^"]+)"', texts) if link.startswith("/page/")}
    assert len(linked) >= 6
    waiting, seen = set(linked), set[str]()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        answer = server.http.get(path)
        assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"], path
        assert answer.headers["content-type"] == TYPES[path[path.rindex(".") :]]
        assert answer.headers["content-security-policy"] == page.headers["content-security-policy"]
        if path.endswith(".js") and "vendored" not in path:
            imported = re.findall(r'(?:from|import) "(\.[^"]+)"', answer.text)
            waiting |= {normpath(join(path, "..", name)) for name in imported} - seen
    served = {f"/page/{page_files().digest}/{path}" for path in page_files().files}
    assert seen <= served
    rest = {path for path in served - seen if "/vendored/" not in path}
    assert not rest, "files that nothing loads"


@pytest.mark.parametrize("path", ["0/js/main.js", "D/js/none.js", "D/%2e%2e/%2e%2e/router.py", "D/README.md"])
def test_what_is_not_there(server: RunningServer, path: str) -> None:
    answer = server.http.get("/page/" + path.replace("D", page_files().digest))
    assert answer.status_code == 404 and "reload the page" in answer.json()["error"]["message"]


def test_languages_that_are_loaded_by_name() -> None:
    names = re.search(r"const NAMES = \{(.*?)\};", (STATIC / "js/highlight.js").read_text(), re.DOTALL)
    assert names is not None
    files = {path.name.removesuffix(".min.js") for path in (STATIC / "vendored/highlight/languages").iterdir()}
    assert set(re.findall(r"(\w+):", names[1])) == files


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    for path in OWN:
        text = path.read_text()
        if path.suffix == ".md":
            continue
        assert not set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)


def test_vendored_files_are_the_released_ones() -> None:
    folder = STATIC / "vendored"
    told = dict(
        reversed(line.split("  ./"))
        for line in re.findall(r"^[0-9a-f]{64}  \./\S+$", (folder / "README.md").read_text(), re.M)
    )
    files = {
        str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file() and path.name != "README.md"
    }
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == told


def test_the_page_needs_no_key_and_its_data_do() -> None:
    with running_server(lambda: ModelPool([tiny_source()]), ServerSettings(api_keys=("k",))) as server:
        assert server.http.get("/").status_code == 200
        assert server.http.get(f"/page/{page_files().digest}/js/main.js").status_code == 200
        assert server.http.get("/inspector/models").status_code == 401
        assert server.http.get("/inspector/models", headers={"x-api-key": "k"}).json()[0]["state"] == "cold"
