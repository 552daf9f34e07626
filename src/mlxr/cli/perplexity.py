"""`mlxr perplexity`: measures how well a model predicts a text, and so what a format or a way to compute costs."""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.cli.argparse_types import token_count
from mlxr.cli.model_arguments import add_model_arguments, load_model
from mlxr.cli.terminal import ProgressLine
from mlxr.compiler.errors import RequestError
from mlxr.compiler.spec.change import Changes
from mlxr.compiler.text import counted

if TYPE_CHECKING:
    from mlxr.runtime.engine.model import Model


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "perplexity",
        help="measure how well a model predicts a text",
        description="Measure how well a model predicts a text: e to the mean negative log-likelihood of its tokens. "
        "The text is cut into windows. Each starts with an empty cache, and with a BOS token if the model puts one "
        "before texts.",
    )
    add_model_arguments(parser)
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="the text, UTF-8")
    parser.add_argument(
        "--context", dest="window", type=token_count, default=512, metavar="N", help="tokens of a window (default: 512)"
    )
    parser.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help="tokens from the start of a window to the start of the next (default: --context, so that windows do not "
        "overlap)",
    )
    parser.add_argument("--tokens", type=int, metavar="N", help="only the first N tokens of the text (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    for name, value in (("context", args.window), ("stride", args.stride), ("tokens", args.tokens)):
        if value is not None and value < 1:
            raise RequestError(f"--{name} is {value}; expected at least 1")
    text = _read(args.text)
    with load_model(args, Changes(needed_context=args.window), needs_text=True) as model:
        return _measure(model, args, text)


def _measure(model: "Model", args: argparse.Namespace, text: str) -> int:
    from mlxr.bench.perplexity import perplexity  # noqa: PLC0415 (loads MLX)

    tokenizer = model.require_tokenizer()
    ids = tokenizer.encode(text, add_special=False)[: args.tokens]
    begin = tokenizer.bos_id if tokenizer.adds_bos else None
    start = time.perf_counter()
    with ProgressLine() as line:

        def show(done: int, total: int, value: float) -> None:
            line.show(f"window {done} of {total}: perplexity {value:.4f}")

        result = perplexity(model, ids, args.window, args.stride, begin, show)
    seconds = time.perf_counter() - start
    spec = model.artifact.spec
    figures = {
        "model": spec.name,
        "host": model.host.name,
        "compute": spec.compute,
        "activations": str(model.types.activations),
        "weights": spec.weights.default,
        "cache": str(model.types.cache),
        "text": str(args.text),
        "context": args.window,
        "perplexity": result.value,
        "seconds": round(seconds, 2),
    } | {key: value for key, value in asdict(result).items() if key != "value"}
    if args.json:
        print(json.dumps(figures, indent=1))
        return 0
    print(
        f"perplexity {result.value:.4f} +- {result.standard_error:.4f}  ({counted(result.tokens, 'token')}, "
        f"{counted(result.windows, 'window')} of {args.window}; {figures['model']}, weights "
        f"{figures['weights']}, activations {figures['activations']}, cache {figures['cache']}, {figures['compute']}, "
        f"host {figures['host']}; {result.tokens / seconds:.0f} tokens/s)"
    )
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"--text {path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"--text {path}: is not UTF-8: {error.reason} at byte {error.start}") from error
