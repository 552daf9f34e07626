"""A changed copy of the package, which another process then runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("compiler", "models", "runtime", "src", "templates")
"""The folders of the package; `src/mlxr` has links to the others."""


class ChangedTree:
    """The copy, without weights.

    Args:
        folder: an empty folder for the copy.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in FOLDERS:
            ignored = shutil.ignore_patterns("*.gguf", "*.egg-info")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)

    def add(self, files: Path) -> None:
        """Adds all files of a folder, by their paths in it; none of them may already exist."""
        for path in _files(files):
            assert not (self.folder / path).exists(), f"{path} exists already: a change must not replace it"
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(files / path, self.folder / path)

    def insert(self, path: str, after: str, text: str) -> None:
        """Inserts text into a file after `after`, which must occur there exactly once."""
        before, place, rest = (self.folder / path).read_text().partition(after)
        assert place and after not in rest, f"{path} must have {after!r} once"
        (self.folder / path).write_text(before + place + text + rest)

    def changed(self) -> list[str]:
        """The files that are new or differ from the repository's."""
        return [str(path) for path in _files(self.folder) if not _same(ROOT / path, self.folder / path)]

    def run(self, program: str, *arguments: str) -> str:
        """Runs a Python program with the changed package; returns what it prints."""
        paths = (self.folder / "src", ROOT / "tests/support")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        command = [
            sys.executable,
            "-c",
            f"import mlxr\nassert mlxr.__file__.startswith({str(self.folder)!r})\n{program}",
        ]
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def _files(folder: Path) -> list[Path]:
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(path.relative_to(folder) for path in paths)


def _same(old: Path, new: Path) -> bool:
    return old.is_file() and old.read_bytes() == new.read_bytes()
