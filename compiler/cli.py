"""The entry of the `mlxr-compile` command; `mlxr.compiler.command.compile` does the work."""

import sys
from collections.abc import Sequence

from mlxr.compiler.command.guard import guarded


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""

    def command() -> int:
        from mlxr.compiler.command.compile import run  # noqa: PLC0415 (slow to import: inside the guard)

        return run(argv)

    return guarded(command)


if __name__ == "__main__":
    sys.exit(main())
