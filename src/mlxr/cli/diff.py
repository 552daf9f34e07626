"""The arguments of `mlxr diff`; `mlxr.diff.command` does the work."""

import argparse

from mlxr.cli.model_arguments import add_key_argument
from mlxr.cli.token_count import token_count
from mlxr.loading.find_model import MODEL_HELP


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the `diff` command; its `run` is the default of the attribute `run`."""
    parser = subparsers.add_parser(
        "diff",
        help="show what differs between two models",
        description="Show what differs between two models: fields of the spec; ops of the graphs, as built and after "
        "fusion; tensors; kernels; bytes of memory; predicted times. Ops are paired by what they do, whatever they are "
        "called. No weights are read. The exit code is 0, whether they differ or not.",
    )
    parser.add_argument("a", metavar="A", help=MODEL_HELP)
    parser.add_argument("b", metavar="B", help="the other model, named in the same way")
    parser.add_argument("--lines", action="store_true", help="show which lines of the kernels' sources differ")
    parser.add_argument(
        "--chip",
        metavar="NAME",
        help="predict times for a chip: h200, m4-max, ... (default: this machine's, else A's own)",
    )
    parser.add_argument(
        "--context",
        type=token_count,
        metavar="N",
        help="tokens of the sequence in the predicted decode step (default: 512)",
    )
    add_key_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from mlxr.diff.command import show  # noqa: PLC0415 (slow to import: not for other commands)

    return show(args)
