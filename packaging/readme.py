"""Gives README.md absolute links, for a package index, which shows it alone: python packaging/readme.py URL VERSION.

URL is that of the repository on its forge, VERSION the tag. Pictures are linked raw, so that they show.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
_LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?![a-z]+:|#)([^)\s]+)\)")


def absolute(text: str, url: str, version: str) -> str:
    """A page of the repository's root with absolute links."""
    url = url.rstrip("/")

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}{match[2]}{url}/{kind}/{version}/{match[3]})"

    return _LINK.sub(link, text)


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[1].startswith("https://"):
        sys.exit(__doc__)
    README.write_text(absolute(README.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
