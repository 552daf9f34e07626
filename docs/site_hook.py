"""MkDocs' hook: the site's pages are those of the repository, at their own paths, so that their links lead on."""

import re
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (
    "*.md",
    "docs/*.md",
    "docs/*.png",
    "docs/*.svg",
    "benchmarks/*.md",
    "examples/*",
    "models/README.md",
    "models/storyteller/README.md",
    "templates/README.md",
    "tests/README.md",
)
_DIAGRAM = re.compile(r"^```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Lays out a folder of links to the pages."""
    folder = Path(tempfile.mkdtemp(prefix="mlxr-docs-"))
    for path in (path for pattern in PAGES for path in ROOT.glob(pattern)):
        link = folder / path.relative_to(ROOT)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    config.docs_dir = str(folder)
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Shows the one diagram as a picture: forges draw it themselves, and a site would fetch what draws it."""
    return _DIAGRAM.sub("![The stages of a compile and of a run](stages.svg)", markdown)
