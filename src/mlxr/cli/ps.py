"""`mlxr ps`: lists the running servers."""

import argparse
import json
from typing import Any

from mlxr.cli.terminal import print_table
from mlxr.server.life.control import status_of
from mlxr.server.life.state_file import running_servers


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "ps",
        help="list the running servers",
        description="List the servers that you have started on this machine, and what state their models are in.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    servers = [(state, status_of(state)) for state in running_servers()]
    if args.json:
        rows = [{"url": state.url, "port": state.port, "pid": state.pid, **told} for state, told in servers]
        print(json.dumps({"servers": rows}, indent=1))
    elif not servers:
        print("no server is running; mlxr serve MODEL starts one")
    else:
        rows_of = [(state.url, str(state.pid), told["state"], _models(told)) for state, told in servers]
        print_table([("url", "process", "state", "models"), *rows_of])
    return 0


def _models(told: dict[str, Any]) -> str:
    return ", ".join(f"{model['name']} ({_state(model)})" for model in told.get("models", []))


def _state(model: dict[str, Any]) -> str:
    context = model.get("context")
    return model["state"] if context is None else f"{model['state']}, context {context:,}"
