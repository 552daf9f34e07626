"""`mlxr logits`: writes the model's raw output for given tokens, to check it against another implementation."""

import argparse
import io
import sys
from pathlib import Path

import numpy as np

from mlxr.cli.model_arguments import add_context_argument, add_model_arguments, load_model
from mlxr.compiler.errors import RequestError
from mlxr.output_file import check_output, write_output


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "logits",
        help="write the logits of given tokens",
        description="Write the logits after each given token to a .npy file: [tokens, vocab], f32.",
    )
    add_model_arguments(parser)
    add_context_argument(parser)
    parser.add_argument(
        "--tokens", required=True, metavar='"1 403 27"', help="token ids, separated by spaces or commas"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.npy", help="where to write them")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    try:
        tokens = [int(word) for word in args.tokens.replace(",", " ").split()]
    except ValueError as error:
        raise RequestError(f'--tokens is {args.tokens!r}; expected token ids such as "1 403 27"') from error
    check_output(args.output)
    with load_model(args) as model:
        logits = model.logits(tokens)
        buffer = io.BytesIO()
        np.save(buffer, logits)
        write_output(args.output, buffer.getvalue())
        print(f"{args.output}: {logits.shape[0]} x {logits.shape[1]} f32, host {model.host.name}", file=sys.stderr)
    return 0
