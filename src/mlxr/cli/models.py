"""`mlxr models`: lists the families and specs that MLXR knows."""

import argparse
import json
from typing import Any

from mlxr.cli.terminal import print_table


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "models",
        help="list the families and bundled specs",
        description="List the model families that can be imported, under the names that files give them, and the "
        "bundled specs.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from mlxr.compiler.spec.catalog import bundled_specs  # noqa: PLC0415 (slow to import: not for other commands)
    from mlxr.compiler.spec.family import known_families, load_family  # noqa: PLC0415
    from mlxr.compiler.spec.load import load_spec  # noqa: PLC0415

    families: list[dict[str, Any]] = []
    for name in known_families():
        family = load_family(name)
        config = list(dict.fromkeys((*family.config.names, *family.config.wrappers)))
        names = {"config": config, "gguf": list(family.gguf.names)}
        families.append({"name": name, **names, "about": family.about})
    specs = [
        {"name": name, "family": spec.model.tensor_names, "weights": str(spec.weights.default), "path": str(path)}
        for name, path in bundled_specs().items()
        for spec in (load_spec(path),)
    ]
    if args.json:
        print(json.dumps({"families": families, "specs": specs}, indent=1))
        return 0
    rows: list[tuple[str, ...]] = [("family", "model_type in config.json", "GGUF architecture", "covers")]
    rows += [(f["name"], ", ".join(f["config"]) or "-", ", ".join(f["gguf"]) or "-", f["about"]) for f in families]
    print_table(rows)
    print()
    print_table([("bundled spec", "family", "weights"), *((s["name"], s["family"], s["weights"]) for s in specs)])
    return 0
