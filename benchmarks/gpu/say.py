"""Progress messages of the benchmark."""

import contextlib
import sys


def say(text: str) -> None:
    """Prints a line on standard error."""
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)
