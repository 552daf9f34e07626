"""The page of the API: every path and field, and nothing that asks another server."""

import html
import re
from html.parser import HTMLParser

import pytest

from mlxr_tests.running_server import RunningServer


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.tags.add(tag)
        self.ids.add(told.get("id") or "")
        self.links |= {text for name in ("href", "src") if (text := told.get(name))}


@pytest.mark.long
def test_the_api_is_told_whole_and_by_this_server_alone(server: RunningServer) -> None:
    answer, document = server.http.get("/docs"), server.http.get("/openapi.json").json()
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = Links()
    page.feed(answer.text)
    assert page.tags.isdisjoint({"script", "style", "iframe", "img", "form"})
    own = {link for link in page.links if not link.startswith("#")}
    assert {server.http.get(link).status_code for link in own} == {200} and len(own) == 4
    assert {link[1:] for link in page.links - own} <= page.ids
    told = html.unescape(re.sub(r"<[^>]*>", " ", answer.text))
    for path, methods in document["paths"].items():
        assert f" {path} " in told, path
        assert all(method.get("description", "").split("\n\n")[0] in told for method in methods.values())
    fields = {name for schema in document["components"]["schemas"].values() for name in schema.get("properties", {})}
    assert all(f" {name} " in told for name in fields) and len(fields) > 200
