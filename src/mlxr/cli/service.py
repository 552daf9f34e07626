"""`mlxr service`: lets the system start the server, and keep it running."""

import argparse

from mlxr.cli.serve import add_parser as add_serve_parser
from mlxr.compiler.cli.parser import CommandParser
from mlxr.compiler.errors import RequestError
from mlxr.server.life.service import this_systems_service

_ABOUT = (
    "Let the system run mlxr serve from now on, and whenever you log in: as a systemd user unit on Linux, as a launchd "
    "agent on macOS."
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "service", help="let the system start the server, and keep it running", description=_ABOUT
    )
    actions = parser.add_subparsers(metavar="install|remove", required=True)
    install = actions.add_parser(
        "install",
        help="start the server now and at each login",
        description=f"{_ABOUT} What follows -- is given to mlxr serve, which gets this folder, PATH and the MLXR_ "
        "variables as they are now. An installed service is replaced.",
    )
    install.add_argument("--print", action="store_true", dest="shows", help="print the service's file, and do nothing")
    install.add_argument("arguments", nargs="*", metavar="-- ARGUMENT", help="of mlxr serve, such as -- storyteller")
    install.set_defaults(run=run_install)
    remove = actions.add_parser(
        "remove", help="stop the server, for ever", description="Stop the service and remove it."
    )
    remove.set_defaults(run=run_remove)


def run_install(args: argparse.Namespace) -> int:
    """Runs `mlxr service install`."""
    words = list(args.arguments)
    serve = _serve_arguments(words)
    service = this_systems_service()
    text = service.text(words, serve.grace)
    if args.shows:
        print(text, end="")
        return 0
    service.install(text)
    print(f"installed {service.path}; mlxr ps shows the server, mlxr service remove stops it")
    return 0


def run_remove(_: argparse.Namespace) -> int:
    """Runs `mlxr service remove`."""
    service = this_systems_service()
    print(f"removed {service.path}" if service.remove() else "there is no service of mlxr")
    return 0


def _serve_arguments(words: list[str]) -> argparse.Namespace:
    """The arguments as `mlxr serve` reads them, so that mistakes are told now and not by the service's log."""
    parser: argparse.ArgumentParser = CommandParser(prog="mlxr service install --")
    add_serve_parser(parser.add_subparsers())
    args = parser.parse_args(["serve", *words])
    if args.detach:
        raise RequestError("leave --detach out: the system runs services in the background itself")
    return args
