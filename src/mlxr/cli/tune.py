"""The arguments of `mlxr tune`; `mlxr.tuning.command` does the work."""

import argparse
from pathlib import Path

from mlxr.cli.model_arguments import add_trust_argument
from mlxr.cli.model_name import model_name
from mlxr.cli.token_count import token_count
from mlxr.compiler.command.type_options import add_type_arguments
from mlxr.loading.find_model import MODEL_HELP
from mlxr.runtime.hosts.registry import AUTO, host_choices


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the `tune` command; its `run` is the default of the attribute `run`."""
    parser = subparsers.add_parser(
        "tune",
        help="choose launch geometry by measuring on this machine's GPU",
        description="Time candidates of each kind of launch on this machine's GPU, with random weights, and write a "
        "new artifact with the fastest. Its tuning.json has the times of all candidates; mlxr inspect shows what was "
        "chosen.",
    )
    parser.add_argument("model", type=model_name, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where to write the artifact")
    parser.add_argument(
        "--host",
        default=AUTO,
        choices=host_choices(),
        help="the host whose launches to time; it must have a GPU (default: this machine's)",
    )
    parser.add_argument(
        "--chip",
        metavar="NAME",
        help="the chip whose geometry to start from (default: the artifact's, else this machine's)",
    )
    parser.add_argument(
        "--context",
        type=token_count,
        metavar="N",
        help="tokens of each sequence in decode (default: 512)",
    )
    add_type_arguments(parser)
    add_trust_argument(parser)
    parser.add_argument("--json", action="store_true", help="print what tuning.json holds")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from mlxr.tuning.command import tune  # noqa: PLC0415 (loads MLX)

    return tune(args)
