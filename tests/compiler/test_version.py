"""The version of a copy of MLXR: a clone's by git, a source distribution's and a package's by their metadata."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from mlxr.cli import main
from mlxr.compiler import version
from mlxr.compiler.version import VERSION

SOURCE = Path(version.__file__).resolve()


def version_of(file: Path) -> str:
    """What the build gets: this one file, loaded alone."""
    spec = importlib.util.spec_from_file_location("version_alone", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    told = str(module.full_version())
    assert str(Version(told)) == told, "not how PEP 440 spells versions"
    return told


def git(folder: Path, *words: str) -> str:
    names = (
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@localhost",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "tag.gpgsign=false",
    )
    return subprocess.check_output(["git", "-C", folder, *names, *words], text=True).strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    (folder / "compiler").mkdir(parents=True)
    (folder / "src/mlxr").mkdir(parents=True)
    (folder / "src/mlxr/compiler").symlink_to("../../compiler")
    shutil.copy(SOURCE, folder / "compiler")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    return folder


def test_a_clone_tells_its_commit_and_what_was_changed(clone: Path) -> None:
    file = clone / "src/mlxr/compiler/version.py"
    first = version_of(file)
    assert first == f"{VERSION}.dev1+g{git(clone, 'rev-parse', '--short=7', 'HEAD')}"
    (clone / "new").write_text("not tracked\n")
    assert version_of(file) == first
    with file.open("a") as text:
        text.write("\n")
    assert version_of(file) == f"{first}.dirty"
    git(clone, "commit", "--quiet", "-a", "-m", "two")
    second = version_of(file)
    git(clone, "tag", "v0.0.1")
    assert version_of(file) == second
    git(clone, "tag", "-m", "annotated", f"v{VERSION}")
    assert version_of(file) == VERSION
    assert Version(first) < Version(second) < Version(VERSION)
    (clone / "compiler/version.py").write_bytes(SOURCE.read_bytes())
    assert version_of(file) == f"{VERSION}+dirty"


def test_sources_without_git(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of a forge, in another project's clone; a source distribution, in this one; a clone without git."""
    inner = clone / "archive"
    shutil.copytree(clone, inner, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    assert version_of(inner / "compiler/version.py") == f"{VERSION}+unknown"
    (inner / "src/mlxr/compiler").unlink()
    shutil.copytree(clone / "compiler", inner / "src/mlxr/compiler")
    (inner / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: mlxr\nVersion: 7.8.9\n")
    assert version_of(inner / "src/mlxr/compiler/version.py") == "7.8.9"
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert version_of(clone / "compiler/version.py") == f"{VERSION}+unknown"


def test_an_installed_package_in_another_projects_clone(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = clone / "vendor"
    shutil.copytree(clone / "compiler", packages / "mlxr/compiler")
    (packages / "mlxr-9.8.7.dist-info").mkdir()
    (packages / "mlxr-9.8.7.dist-info/METADATA").write_text("Metadata-Version: 2.4\nName: mlxr\nVersion: 9.8.7\n")
    (clone / "pyproject.toml").touch()
    monkeypatch.syspath_prepend(packages)
    assert version_of(packages / "mlxr/compiler/version.py") == "9.8.7"


@pytest.mark.parametrize("file", ["/version.py", "/mlxr/compiler/version.py"])
def test_near_the_root_of_the_disk(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "__file__", file)
    assert Version(version.full_version())


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"mlxr {version.full_version()}\n"
