"""`mlxr inspect`: shows what an artifact holds. Its arguments are here; `show` does the work, and is slow to import."""

import argparse
from pathlib import Path

from mlxr.cli.argparse_types import model_name, token_count
from mlxr.cli.model_arguments import add_key_argument, add_trust_argument
from mlxr.compiler.cli.spec_options import add_type_arguments
from mlxr.compiler.targets.registry import TARGETS
from mlxr.loading.find_model import MODEL_HELP


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the `inspect` command; its `run` is the default of the attribute `run`."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what an artifact holds",
        description="Show what an artifact holds: memory, kernels, and one row per launch of decode and prefill.",
    )
    parser.add_argument("model", type=model_name, metavar="MODEL", help=MODEL_HELP)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--kernel", metavar="NAME", help="show the source of a kernel, by its name or label")
    shown.add_argument("--graph", metavar="FILE.svg", type=Path, help="draw the op graph before and after fusion")
    shown.add_argument(
        "--all-launches", action="store_true", help="show every launch instead of folding layers that are alike"
    )
    parser.add_argument(
        "--target",
        choices=TARGETS,
        help="the target whose launches or kernel to show (default: metal where the artifact has it)",
    )
    parser.add_argument(
        "--rank", type=int, metavar="N", help="show one rank of a model that is split over several (default: all)"
    )
    roofline = parser.add_argument_group("roofline", "how long each launch takes, predicted and measured")
    roofline.add_argument(
        "--chip",
        metavar="NAME",
        help="predict for a chip: h200, m4-max, ... (with --measure the default is this machine's)",
    )
    roofline.add_argument(
        "--predict", action="store_true", help="predict for the chip that it was compiled for, or this machine's"
    )
    roofline.add_argument(
        "--link",
        metavar="NAME",
        help="of a model that is split over ranks: predict with a link between them: 10GbE, tb5, nvlink, ...",
    )
    roofline.add_argument("--measure", action="store_true", help="measure each launch on this machine's GPU")
    roofline.add_argument(
        "--context",
        type=token_count,
        metavar="N",
        help="tokens of each sequence in decode (default: 512)",
    )
    roofline.add_argument("--batch", type=int, metavar="N", help="sequences in decode (default: 1)")
    add_type_arguments(parser)
    add_key_argument(parser)
    add_trust_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from mlxr.cli.inspect.show import show  # noqa: PLC0415 (slow to import: not for the help)

    return show(args)
