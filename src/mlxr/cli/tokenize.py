"""`mlxr tokenize`: shows the tokens of a text, as a model reads it."""

import argparse
import json
import sys
from pathlib import Path

from mlxr.cli.argparse_types import model_name
from mlxr.cli.prompt_source import add_prompt_source, read_prompt
from mlxr.cli.terminal import show_any_character
from mlxr.compiler.errors import RequestError
from mlxr.compiler.text import counted
from mlxr.runtime.tokenizer.tokenizer import Tokenizer


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "tokenize",
        help="show the tokens of a text",
        description="Show the tokens that a model's tokenizer makes of a text, each with its id and its spelling in "
        "the vocabulary, including those that the model puts before or after a text (BOS, say). No weights are loaded.",
    )
    parser.add_argument(
        "model",
        type=model_name,
        metavar="MODEL",
        help="a bundled or registered model's name, a .gguf file, a Hugging Face folder, or a tokenizer.json or "
        "tokenizer.model",
    )
    add_prompt_source(parser)
    parser.add_argument(
        "--special",
        action="store_true",
        help="read special tokens that are spelled out in the text (<|im_start|>) as those tokens; otherwise they are "
        "plain text",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--ids", action="store_true", help="print only the ids, on one line, as mlxr logits takes them")
    form.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    text = read_prompt(args)
    show_any_character()
    tokenizer = _tokenizer(args.model)
    ids = tokenizer.encode(text, parse_special=args.special)
    if args.ids:
        print(*ids)
    elif args.json:
        print(json.dumps({"count": len(ids), "ids": ids, "tokens": [tokenizer.token_text(i) for i in ids]}))
    else:
        for token_id in ids:
            print(f"{token_id:>7}  {tokenizer.token_text(token_id)!r}")
    if not args.json:
        print(f"{counted(len(ids), 'token')} of {counted(len(text), 'character')}", file=sys.stderr)
    return 0


def _tokenizer(model: str) -> Tokenizer:
    from mlxr.compiler.artifact import is_artifact  # noqa: PLC0415 (slow to import: not for other commands)
    from mlxr.compiler.spec.catalog import bundled_specs  # noqa: PLC0415
    from mlxr.registry.registry import Registry  # noqa: PLC0415
    from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer  # noqa: PLC0415

    specs, path = bundled_specs(), Path(model)
    if model in specs:
        path = specs[model].parent / f"{model}-q8_0.gguf"
    elif not path.exists() and (registered := Registry().get(model)) is not None:
        path = Path(registered.options.tokenizer or registered.options.weights or registered.source)
    if (model in specs and not path.is_file()) or path.suffix == ".yaml" or is_artifact(path):
        raise RequestError(f"{model} comes without a tokenizer: name its tokenizer.json, .gguf file or folder instead")
    return load_tokenizer(path)
