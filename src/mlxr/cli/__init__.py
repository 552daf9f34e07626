"""The `mlxr` command: the one place that sees both the compiler and the runtime.

Results go to standard output, the rest to standard error. Exit 0: done; 1: the input is at fault; 2: wrong usage;
130: interrupted.
"""

import argparse
from collections.abc import Sequence

from mlxr.compiler.guard import guarded
from mlxr.compiler.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    return guarded(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    # Imported here, inside the guard: loading MLX takes long enough to be interrupted.
    from mlxr.cli import bench, chat, import_spec, inspect, logits, models, perplexity, run, tokenize, tune  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        prog="mlxr",
        description="Run, inspect, tune and check compiled language models. Compile specs with mlxr-compile.",
    )
    parser.add_argument("--version", action="version", version=f"mlxr {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (run, chat, bench, perplexity, tokenize, inspect, tune, logits, import_spec, models):
        command.add_parser(commands)
    args = parser.parse_args(argv)
    code: int = args.run(args)
    return code
