"""`mlxr remove`: takes a model's name out of the registry."""

import argparse
import json

from mlxr.cli.argparse_types import model_name
from mlxr.compiler.text import counted


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "remove",
        help="take a model's name out of the registry",
        description="Take a model's name out of the registry, and what MLXR compiled for it out of the cache, if no "
        "other registered model needs that. The model's own files stay.",
    )
    parser.add_argument("name", type=model_name, metavar="NAME", help="a name that mlxr list shows")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from mlxr.loading.artifact_cache import discard  # noqa: PLC0415 (slow to import: not for the help)
    from mlxr.registry.registry import Registry  # noqa: PLC0415

    unneeded = [artifact.folder for artifact in Registry().remove(args.name)]
    removed = [str(folder) for folder in unneeded if discard(folder)]
    if args.json:
        print(json.dumps({"name": args.name, "removed_from_cache": removed}, indent=1))
    else:
        cached = f", and {counted(len(removed), 'artifact')} from the cache" if removed else ""
        print(f"removed {args.name} from the registry{cached}; its files are where they were")
    return 0
