"""`mlxr fit`: what models would take here or elsewhere, before they are fetched."""

import argparse
import json
import sys

from mlxr.cli.argparse_types import model_name, token_count
from mlxr.cli.model_arguments import add_experts_argument, add_host_argument, add_key_argument, changes_of
from mlxr.cli.terminal import ProgressLine, shows_colour, terminal_width
from mlxr.cli.tier_options import size_argument
from mlxr.compiler.cli.spec_options import add_type_arguments
from mlxr.compiler.errors import RequestError
from mlxr.hub.choose_files import HubFile
from mlxr.loading.options import LoadOptions
from mlxr.runtime.hosts.registry import AUTO

_ABOUT = (
    "Tell what models would take on this machine or on others, before they are fetched: memory by the plan that they "
    "compile to, the longest sequence, how many sequences at once, tokens a second; and which file of a repository to "
    "take. Of models on the hub, config.json and the beginnings of weight files are read, never the weights. Speed: on "
    "GPUs predicted from the plan's launches and the chip's figures (mlxr inspect --chip shows each of them); on host "
    "cpu here, the model's program is compiled and timed for some seconds over weights that are zeros."
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("fit", help="tell what a model would take, before it is fetched", description=_ABOUT)
    parser.add_argument(
        "models",
        nargs="+",
        type=model_name,
        metavar="MODEL",
        help="ORG/REPO[@REVISION][:FILE] on the hub, a .gguf file, a folder of them or a Hugging Face folder, or what "
        "other commands take; of a repository or folder with several models, all of them",
    )
    where = parser.add_argument_group("where it would run")
    where.add_argument(
        "--chip",
        action="append",
        default=[],
        metavar="NAME",
        help="on a machine with this chip: m4-max, rtx-4090, h200, ...; may be given several times",
    )
    where.add_argument("--here", action="store_true", help="on this machine (the default without --chip)")
    where.add_argument(
        "--memory",
        type=size_argument,
        metavar="SIZE",
        help="how much memory there is, such as 64GiB (default: here what is free now, with --chip the most that the "
        "chip is sold with)",
    )
    add_host_argument(where, "where to run here")  # type: ignore[arg-type]  # a group takes arguments as a parser does
    where.add_argument("--threads", type=int, metavar="N", help="threads of host cpu (default: one for each core)")
    parser.add_argument(
        "--context",
        type=token_count,
        metavar="N",
        help="tokens of the sequence that memory is told for (default: 8192, or the model's own limit if that is less)",
    )
    parser.add_argument(
        "--compute",
        choices=("exact", "fast"),
        help="exact: f32 activations; fast: 8-bit or bf16 ones where that is faster (default: fast)",
    )
    add_experts_argument(parser)
    add_type_arguments(parser)
    add_key_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, trust_artifact=False)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from mlxr.fit.fit_report import fit_json, fit_text  # noqa: PLC0415 (slow to import: not for the help)
    from mlxr.fit.machine import machine_with, this_machine  # noqa: PLC0415
    from mlxr.fit.rows import fit_rows  # noqa: PLC0415
    from mlxr.inspect.text_table import Ink  # noqa: PLC0415

    if args.chip and not args.here and (args.host != AUTO or args.threads is not None):
        raise RequestError("--host and --threads say how models run here: add --here, or leave them out")
    context, args.context = args.context, None  # memory is told for it; the model keeps its own limit
    if context is not None and context < 1:
        raise RequestError(f"--context is {context}; expected at least 1")
    machines = [machine_with(name, args.memory) for name in dict.fromkeys(args.chip)]
    if args.here or not machines:
        machines.insert(0, this_machine(args.host, args.memory))
    options = LoadOptions(threads=args.threads, changes=changes_of(args), experts_on_cpu=args.experts_on_cpu)
    with ProgressLine() as line:

        def fetching(what: str, file: HubFile, done: int) -> None:
            line.show(f"{what} {file.path} {100 * done // max(1, file.size_bytes)} %")

        rows = list(fit_rows(args.models, machines, options, context, line.show, fetching))
    if args.json:
        print(json.dumps(fit_json(rows), indent=1))
    else:
        sys.stdout.write(fit_text(rows, terminal_width(), Ink(shows_colour())))
    return 0 if any(row.error is None for row in rows) else 1
