"""What docs/ARCHITECTURE.md names exists: paths, functions in their files, types."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "docs/ARCHITECTURE.md").read_text()
TOP = ("benchmarks/", "compiler/", "docs/", "models/", "runtime/", "src/", "templates/", "tests/")
PATHS = sorted({path for path in re.findall(r"`([\w./-]+)`", MAP) if path.startswith(TOP)})
STAGES = re.findall(r"^\| `(\w+)` \|.*\| `([\w/]+\.py)` \|$", MAP, re.MULTILINE)
TYPES = sorted(set(re.findall(r"`([A-Z][a-z]\w*)(?:\.\w+)?`", MAP)))
METHODS = sorted(set(re.findall(r"`([A-Z][a-z]\w*)\.(\w+)`", MAP)))
SOURCES = [
    path.read_text() for folder in ("compiler", "runtime", "src") for path in sorted((ROOT / folder).rglob("*.py"))
]


@pytest.mark.parametrize("path", PATHS)
def test_paths(path: str) -> None:
    assert any(True for _ in ROOT.glob(path.replace("NAME", "*").rstrip("/")))


@pytest.mark.parametrize(("function", "file"), STAGES)
def test_stages(function: str, file: str) -> None:
    assert re.search(rf"^ *def {function}\(", (ROOT / file).read_text(), re.MULTILINE)


def class_text(name: str) -> str:
    pattern = re.compile(rf"^class {name}\b.*?(?=^\S|\Z)|^{name} = .*?$", re.MULTILINE | re.DOTALL)
    named = (text for text in SOURCES if f"class {name}" in text or f"\n{name} = " in text)
    return "".join(match[0] for text in named for match in pattern.finditer(text))


@pytest.mark.parametrize("name", TYPES)
def test_types(name: str) -> None:
    assert class_text(name)


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_methods(name: str, method: str) -> None:
    assert re.search(rf"\bdef {method}\(|\bself\.{method}\b", class_text(name))


def test_the_map_is_read() -> None:
    assert len(PATHS) > 50 and len(STAGES) > 20 and len(TYPES) > 40 and len(METHODS) > 5
