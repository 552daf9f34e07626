"""Fails if a page of the built site would fetch something from elsewhere: python docs/check_site.py build/site.

Links that a reader may click are no fetches. Scripts are judged by tests/docs/test_site.py, in a browser.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_ELSEWHERE = re.compile(r"\s*(?:[a-z]+:)?//", re.IGNORECASE)
_IN_CSS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
_FETCHED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "video": ("src", "poster"),
    "audio": ("src",),
    "track": ("src",),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
}
_NOT_FETCHED = {"canonical", "next", "prev", "author", "license", "alternate", "edit"}
"""Kinds of <link> that only say something."""


class _Page(HTMLParser):
    """Collects the addresses that a page fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects those of a tag."""
        given = {name: value or "" for name, value in attrs}
        self.fetched += [given[name] for name in _FETCHED.get(tag, ()) if name in given]
        if tag == "link" and not set(given.get("rel", "").split()) <= _NOT_FETCHED:
            self.fetched.append(given.get("href", ""))
        self.fetched += _urls(given.get("style", ""))
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        """Collects those of a <style>."""
        if self._in_style:
            self.fetched += _urls(data)


def _urls(css: str) -> list[str]:
    return [first or second for first, second in _IN_CSS.findall(css)]


def fetched_from_elsewhere(site: Path) -> Iterator[tuple[Path, str]]:
    """Files of a site, and addresses of other sites that they fetch."""
    for path in sorted(site.rglob("*")):
        addresses: list[str] = []
        if path.suffix in (".html", ".svg"):
            page = _Page()
            page.feed(path.read_text(encoding="utf-8"))
            addresses = page.fetched
        elif path.suffix == ".css":
            addresses = _urls(path.read_text(encoding="utf-8"))
        yield from ((path, address) for address in addresses if _ELSEWHERE.match(address))


def main() -> int:
    """Checks a site; returns the exit code."""
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        print(f"there is no site in {site}")
        return 1
    found = list(fetched_from_elsewhere(site))
    for path, address in found:
        print(f"{path}: fetches {address}")
    print(f"{site}: {sum(1 for _ in site.rglob('*.html'))} pages; {len(found)} fetch something from elsewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
