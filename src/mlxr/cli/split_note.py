"""A note to whoever runs a model over several machines where one machine is predicted to be faster."""

import argparse
import os
import sys
from threading import Thread
from typing import TYPE_CHECKING

from mlxr.compiler.chips.link import find_link
from mlxr.compiler.errors import RequestError
from mlxr.loading.resolve import chip_of
from mlxr.runtime.hosts.registry import hosts
from mlxr.runtime.parallel.launch import is_launched, read_launch

if TYPE_CHECKING:
    from mlxr.runtime.engine.model import Model

_USUAL: dict[str, str] = {"nccl": "nvlink", "jaccl": "tb5"}
"""The link that is assumed for a backend, whatever machines it connects."""


def add_link_argument(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Adds --link."""
    parser.add_argument(
        "--link",
        metavar="NAME",
        help="what connects the ranks, for the note that one machine would be faster: a link of mlxr inspect --predict "
        "(default: nvlink with nccl, tb5 with jaccl, else loopback on one machine and 10GbE between several)",
    )


def check_link(args: argparse.Namespace) -> None:
    """Refuses a link that is not known, or that connects nothing.

    Raises:
        RequestError: this process runs a model alone.
        PlanError: no link has that name; the message lists the known ones.
    """
    if args.link is None:
        return
    find_link(args.link)
    if not is_launched():
        raise RequestError("--link is for a model over several machines, which mlx.launch starts: leave it out")


def split_note(model: "Model", link: str | None) -> str | None:
    """Why one machine is predicted to decode faster than the ranks of a model. It takes about a second.

    Args:
        model: on rank 0.
        link: between the ranks, by its name; None: the usual one of MLX's backend.

    Returns:
        The note; None: it is not, or nobody knows, as on CPUs.
    """
    launch, ranks = read_launch(os.environ), model.ranks
    if launch is None or ranks is None:
        return None
    chip = chip_of(hosts()[model.host.name])
    if chip is None or chip.figures is None:
        return None
    from mlxr.inspect.split.compare_splits import predicted_slower  # noqa: PLC0415 (slow to import)

    reason = predicted_slower(ranks.artifact, find_link(link or usual_link(launch.backend, ranks.on_one_machine)), chip)
    if reason is None:
        return None
    assumed = "" if link else " (--link NAME if another link connects them)"
    return f"{reason}{assumed}; mlxr inspect --predict compares splits"


def usual_link(backend: str, on_one_machine: bool) -> str:
    """The name of the link that is assumed for MLX's backend where nobody names another."""
    return _USUAL.get(backend, "loopback" if on_one_machine else "10GbE")


def tell_beside(model: "Model", link: str | None) -> Thread:
    """Writes the note to stderr, if there is one, in a thread, which is returned: a server starts meanwhile."""

    def tell() -> None:
        if (note := split_note(model, link)) is not None:
            sys.stderr.write(f"note: {note}\n")
            sys.stderr.flush()

    thread = Thread(target=tell, daemon=True, name="split note")
    thread.start()
    return thread
