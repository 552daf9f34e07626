"""What the benchmark tells while it runs."""

import contextlib
import sys


def say(text: str) -> None:
    """Tells of progress on standard error."""
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)
