"""`mlxr fuse`: writes a model with LoRA adapters inside."""

import argparse
import json
from pathlib import Path

from mlxr.cli.argparse_types import model_name
from mlxr.cli.terminal import ProgressLine
from mlxr.compiler.errors import RequestError
from mlxr.loading.adapter_paths import parse_adapter
from mlxr.loading.find_model import find_model

_ABOUT = (
    "Write a model with LoRA adapters inside. Of a GGUF file it becomes another one, with all metadata, whose tensors "
    "keep their formats: those that change are quantised anew. Of a folder of floats it becomes a folder of the same "
    "types. The result appears whole or not at all."
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser("fuse", help="write a model with LoRA adapters inside", description=_ABOUT)
    parser.add_argument(
        "model",
        type=model_name,
        metavar="MODEL",
        help="a .gguf file, a folder, or a bundled or registered model's name",
    )
    parser.add_argument(
        "--adapter",
        action="append",
        required=True,
        metavar="PATH[:SCALE]",
        help="a folder of PEFT or mlx-lm, or a GGUF file; may be given several times",
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE.gguf|FOLDER", help="where to write it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from mlxr.quantise.fuse_adapters import fuse_adapters  # noqa: PLC0415 (loads MLX)
    from mlxr.quantise.model_files import model_files  # noqa: PLC0415

    model, is_file = model_files(find_model(args.model)), args.output.suffix.lower() == ".gguf"
    if model.is_file() != is_file:
        expected = "a FILE.gguf" if model.is_file() else "a folder"
        raise RequestError(f"{model} becomes {expected}; {args.output} is not one")
    adapters = [parse_adapter(text) for text in args.adapter]
    with ProgressLine() as line:

        def show(name: str, done: int, total: int) -> None:
            line.show(f"{100 * done // max(1, total)} % of {total / 1e6:.1f} MB: {name}")

        changed = fuse_adapters(model, adapters, args.output, show)
    if args.json:
        print(json.dumps({"output": str(args.output), "changed_tensors": changed}))
    else:
        print(f"{args.output}: {changed} tensors are changed")
    return 0
