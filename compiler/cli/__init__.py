"""The `mlxr-compile` command, and what it has in common with `mlxr`: the parser, the guard, options of specs.

`main` is the entry; `compile.py` does the work.
"""

from collections.abc import Sequence

from mlxr.compiler.cli.guard import guarded, held_interrupts


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""

    def command() -> int:
        with held_interrupts():
            from mlxr.compiler.cli.compile import run  # noqa: PLC0415 (slow to import: inside the guard)

        return run(argv)

    return guarded(command)
