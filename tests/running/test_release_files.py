"""What a release locks is what the package asks for; its bill of materials knows all that the page brings."""

import importlib.util
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mlxr_tests.storyteller import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CUDA = PROJECT["optional-dependencies"]["cuda"]
PIN = re.compile(
    r"^(?P<pin>[a-z0-9][^\\\n]*==[^\\\n]*)(?P<hashes>(?: *\\\n +--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


@pytest.mark.parametrize(("file", "needed"), [("", []), ("-cuda", CUDA)], ids=["cpu", "cuda"])
def test_the_lock_file_has_what_pyproject_asks_for(file: str, needed: list[str]) -> None:
    text = (ROOT / f"packaging/requirements{file}.txt").read_text()
    assert "://" not in text and "index" not in text
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith(("#", "--hash="))]
    pins = [Requirement(found["pin"]) for found in PIN.finditer(text)]
    assert len(pins) == len(lines) > 40, "a package without a hash"
    versions: dict[str, list[str]] = {}
    for pin in pins:
        (exact,) = pin.specifier
        versions.setdefault(canonicalize_name(pin.name), []).append(exact.version)
    for asked in map(Requirement, PROJECT["dependencies"] + needed):
        locked = versions.get(canonicalize_name(asked.name), [])
        assert locked and all(map(asked.specifier.contains, locked)), f"{asked}: {locked} is locked; fix: make lock"
    assert bool(needed) == any(name.startswith("nvidia-") for name in versions)


def test_the_bill_has_the_pages_libraries() -> None:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "packaging/sbom.py")
    assert spec and spec.loader
    sbom = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sbom)
    libraries = {library["name"]: library["version"] for library in sbom.vendored()}
    rows = [line for line in (sbom.VENDORED / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert len(libraries) == len(rows) >= len([*sbom.VENDORED.rglob("*.LICENSE")]) >= 3
    told = {"marked.esm.js": "marked", "purify.es.mjs": "dompurify", "highlight/core.min.js": "@highlightjs/cdn-assets"}
    for file, name in told.items():
        version = re.search(r"\d+\.\d+\.\d+", (sbom.VENDORED / file).read_text())
        assert version and libraries[name] == version[0], name


def test_links_of_the_readme_are_absolute_on_an_index() -> None:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "packaging/readme.py")
    assert spec and spec.loader
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    text = readme.absolute((ROOT / "README.md").read_text(), "https://forge.example/a/b/", "v1.2.3")
    links = re.findall(r"\]\(([^)]*)\)", text)
    beginning = re.compile(r"https://forge\.example/a/b/(?:blob|raw)/v1\.2\.3/([^#]+)")
    paths = [found[1] for found in map(beginning.match, links) if found]
    assert len(links) == len(paths) > 20 and all((ROOT / path).is_file() for path in paths)
    assert "![" in text and "b/raw/v1.2.3/docs/inspector.png)" in text
    assert (
        readme.absolute("[a](https://b.example) [c](#d)", "https://e.example", "v1") == "[a](https://b.example) [c](#d)"
    )
