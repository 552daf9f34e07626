"""Takes what only the library can do out of a message, for people at a shell and for clients of the server."""

import re

_IN_PYTHON = re.compile(
    r"\[Errno -?\d+\] | \(mlxr\.Changes\([^()]*\)\)|; in Python cache_dtype"
    r"|(?:; in Python changes=|, |(?<=\())mlxr\.Changes\([^()]*\)(?:, (?=[^)]))?"
)


def without_python(text: object) -> str:
    """A message without its hints for Python, and without names of error numbers: `--context N; in Python ...`."""
    return _IN_PYTHON.sub("", str(text))
