"""`mlxr list`: lists the registered models."""

import argparse
import json

from mlxr.cli.shown_model import as_json, moment
from mlxr.cli.terminal import print_table
from mlxr.compiler.text import size
from mlxr.registry.file_status import status_of
from mlxr.registry.registry import Registry


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "list",
        help="list the registered models",
        description="List the models that were given names with mlxr add or mlxr pull, and whether their files are "
        "unchanged, by size and time of change.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    registry = Registry()
    models = [(model, status_of(model.files)) for model in registry.models()]
    if args.json:
        rows = [as_json(model, status) for model, status in models]
        print(json.dumps({"registry": str(registry.path), "models": rows}, indent=1))
    elif not models:
        print("no models are registered; mlxr add PATH --name NAME registers one")
    else:
        heading = ("name", "kind", "size", "status", "last used", "source")
        print_table(
            [
                heading,
                *(
                    (
                        model.name,
                        model.kind,
                        size(model.size_bytes),
                        status.state if status.path is None else f"{status.state} {status.path.name}",
                        moment(model.last_used),
                        str(model.source),
                    )
                    for model, status in models
                ),
            ]
        )
    return 0
