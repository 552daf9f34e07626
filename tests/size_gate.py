"""Fails if a source file is longer than 500 lines, or if a file contains an absolute path of somebody's machine."""

import re
import subprocess
import sys
from pathlib import Path

MOST_LINES = 500
SOURCES = {".py", ".jinja", ".h", ".cuh", ".c", ".js", ".html", ".css", ".toml", ".yaml"}
TEXTS = SOURCES | {".md", ".svg", ".metal", ".json"}
PROGRAMS = {"Makefile", ".ci/run"}
DATA = Path("tests/data")
# An absolute path of somebody's machine means nothing on another machine.
PATHS = re.compile(r"(?<![\w.])/(?:home|Users|root|work)/\w")


def main() -> int:
    """Checks every tracked file; returns the exit code."""
    tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    problems = []
    for path in map(Path, filter(None, tracked)):
        if path.is_relative_to(DATA) or not (path.suffix in TEXTS or str(path) in PROGRAMS):
            continue
        if not path.is_file() or path.is_symlink():
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        if path.suffix in SOURCES and len(lines) > MOST_LINES:
            problems.append(f"{path}: {len(lines)} lines, at most {MOST_LINES}")
        problems += [f"{path}:{n}: absolute path" for n, line in enumerate(lines, 1) if PATHS.search(line)]
    print("\n".join(problems) or "size gate: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
