"""`mlxr stop`: ends running servers."""

import argparse

from mlxr.compiler.errors import RequestError
from mlxr.server.life.control import end_server
from mlxr.server.life.state_file import StateFile, running_servers


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "stop",
        help="end a running server",
        description="End a server that you have started, and wait until it has ended. It takes no new requests, lets "
        "answers go on for its time of grace (mlxr serve --grace), and saves what its models have cached.",
    )
    parser.add_argument("port", nargs="?", type=int, metavar="PORT", help="where it listens (default: the only one)")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    if args.all and args.port is not None:
        raise RequestError("give a port or --all, not both")
    for state in _chosen(running_servers(), args.port, args.all):
        end_server(state)
        print(f"stopped {state.url}, process {state.pid}")
    return 0


def _chosen(servers: list[StateFile], port: int | None, every: bool) -> list[StateFile]:
    if every:
        return servers
    known = ", ".join(str(state.port) for state in servers)
    if port is not None:
        chosen = [state for state in servers if state.port == port]
        if not chosen:
            others = f"; yours listen at {known}" if known else "; no server of yours is running"
            raise RequestError(f"no server of yours listens at port {port}{others}")
        return chosen
    if not servers:
        raise RequestError("no server of yours is running")
    if len(servers) > 1:
        raise RequestError(f"several servers are running: give a port ({known}), or --all")
    return servers
