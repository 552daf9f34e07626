"""`mlxr diff`: shows what differs between two models."""

import argparse
import sys

from mlxr.cli.argparse_types import token_count
from mlxr.cli.model_arguments import add_key_argument
from mlxr.cli.terminal import shows_colour, terminal_width
from mlxr.compiler.spec.change import Changes
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
    """Runs the command; returns the exit code.

    Raises:
        MlxrError: a model cannot be found or compiled, or does not hold the context.
    """
    from mlxr.compiler.chips.catalog import find_chip  # noqa: PLC0415 (all slow to import: not for the help)
    from mlxr.diff.diff_text import diff_text  # noqa: PLC0415
    from mlxr.diff.model_diff import model_diff  # noqa: PLC0415
    from mlxr.inspect.text_table import Ink  # noqa: PLC0415
    from mlxr.loading.resolve import here, resolve_artifact  # noqa: PLC0415

    chip = find_chip(args.chip) if args.chip else here()
    changes = Changes(accepted_keys=tuple(args.accept_key), trust_artifact=True)  # it runs neither
    a, b = (resolve_artifact(model, changes, chip)[0] for model in (args.a, args.b))
    diff = model_diff(a, b, chip, args.context, lines=args.lines)
    if args.json:
        print(diff.model_dump_json(indent=1))
    else:
        sys.stdout.write(diff_text(diff, terminal_width(), Ink(shows_colour())))
    return 0
