"""Options of `mlxr serve` about one model that runs on several machines."""

import argparse
import os
import sys
from pathlib import Path

from mlxr.cli.split_note import add_link_argument, check_link
from mlxr.compiler.errors import RequestError
from mlxr.runtime.parallel.heartbeat import PARENT_VARIABLE
from mlxr.runtime.parallel.launch import is_launched, read_launch
from mlxr.runtime.parallel.restart import keep_running


def add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them, in a group of their own."""
    ranks = parser.add_argument_group("one model over several machines (started by mlx.launch on each of them)")
    ranks.add_argument("--distributed", metavar="MODEL", help="a model that is split over ranks, or that they compile")
    ranks.add_argument("--weights", metavar="W", help="its weights: a .gguf or .safetensors file, or a folder of them")
    ranks.add_argument(
        "--control",
        metavar="HOST:PORT",
        help="where rank 0 listens for the others (default: its address in mlx.launch's hostfile, any free port)",
    )
    add_link_argument(ranks)
    ranks.add_argument(
        "--restart",
        action="store_true",
        help="when a rank was lost, start again on each machine, and wait for all others (default: end with code 75)",
    )


def check_rank_arguments(args: argparse.Namespace) -> None:
    """Refuses options that do not go together.

    Raises:
        RequestError: they do not.
    """
    if args.distributed is None:
        for option in ("weights", "control", "restart", "link"):
            if getattr(args, option):
                raise RequestError(f"--{option} is for a model over several machines: give --distributed MODEL too")
        if (launch := read_launch(os.environ)) is not None and launch.size > 1:
            model = next(iter(args.models), "MODEL")
            raise RequestError(
                f"mlx.launch started {launch.size} of these servers, for one model over all of them: give it as "
                f"--distributed {model}"
            )
        return
    if args.models or args.named:
        raise RequestError("--distributed serves its model alone: leave other models out, or serve them by themselves")
    if args.detach:
        raise RequestError("mlx.launch starts the ranks of --distributed, and waits for them: leave --detach out")
    if not is_launched():
        refuse_split(args.distributed)
        raise RequestError(
            f"mlx.launch starts the ranks of --distributed: mlx.launch -n 2 -- mlxr serve --distributed "
            f"{args.distributed}; on this machine alone: mlxr serve {args.distributed}"
        )
    check_link(args)


def refuse_split(model: str) -> None:
    """Refuses an artifact for several ranks where a model of one machine is meant.

    Raises:
        RequestError: it is one.
    """
    from mlxr.compiler.artifact import load_artifact  # noqa: PLC0415 (slow to import: not for the help)
    from mlxr.compiler.artifact.manifest import PARALLEL  # noqa: PLC0415

    if not (Path(model) / PARALLEL).is_file() or (split := load_artifact(model).parallel) is None:
        return
    raise RequestError(
        f"{model} is split over {split.size} ranks; what serves it is mlx.launch -n {split.size} -- mlxr serve "
        f"--distributed {model} --weights W"
    )


def run_again(args: argparse.Namespace) -> int | None:
    """With --restart: runs the command in a child process that is started again; its exit code. None: in the child."""
    if not args.restart or PARENT_VARIABLE in os.environ:
        return None
    return keep_running([sys.executable, "-m", "mlxr.cli", *args.argv])
