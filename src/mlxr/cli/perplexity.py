"""`mlxr perplexity`: measures how well a model predicts a text, and so what a format or a way to compute costs."""

import argparse
import json
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxr.cli.argparse_types import model_name, token_count
from mlxr.cli.model_arguments import add_adapter_argument, add_model_arguments, load_model
from mlxr.cli.terminal import ProgressLine
from mlxr.compiler.errors import RequestError
from mlxr.compiler.spec.change import Changes
from mlxr.compiler.text import counted

if TYPE_CHECKING:
    from mlxr.bench.divergence import Divergence
    from mlxr.runtime.engine.model import Model

_QUANTILES = {"p90": "90 %", "p95": "95 %", "p99": "99 %", "p999": "99.9 %"}


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
    add_adapter_argument(parser)
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
    parser.add_argument(
        "--against",
        type=model_name,
        metavar="ORIGINAL",
        help="also measure how far the model is from the one that it was made of: the Kullback-Leibler divergence with "
        "its tail, how often both choose the same token first, the ratio of their perplexities",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from mlxr.bench.text_windows import read_text  # noqa: PLC0415 (loads MLX)

    for name, value in (("context", args.window), ("stride", args.stride), ("tokens", args.tokens)):
        if value is not None and value < 1:
            raise RequestError(f"--{name} is {value}; expected at least 1")
    text = read_text(args.text)
    needed = Changes(needed_context=args.window)
    with ExitStack() as loaded:
        model = loaded.enter_context(load_model(args, needed, needs_text=True))
        original = None
        if args.against is not None:
            named = argparse.Namespace(
                **vars(args) | {"model": args.against, "weights": None, "tokenizer": None, "adapter": None}
            )
            original = loaded.enter_context(load_model(named, needed))
        return _measure(model, original, args, text)


def _measure(model: "Model", original: "Model | None", args: argparse.Namespace, text: str) -> int:
    from mlxr.bench.divergence import divergence  # noqa: PLC0415 (loads MLX)
    from mlxr.bench.perplexity import perplexity  # noqa: PLC0415

    tokenizer = model.require_tokenizer()
    ids = tokenizer.encode(text, add_special=False)[: args.tokens]
    begin = tokenizer.bos_id if tokenizer.adds_bos else None
    start = time.perf_counter()
    far: Divergence | None = None
    with ProgressLine() as line:

        def show(done: int, total: int, value: float) -> None:
            line.show(f"window {done} of {total}: {'perplexity' if original is None else 'divergence'} {value:.4f}")

        if original is None:
            result = perplexity(model, ids, args.window, args.stride, begin, show)
        else:
            far = divergence(model, original, ids, args.window, args.stride, begin, show)
            result = far.perplexity
    seconds = time.perf_counter() - start
    spec = model.artifact.spec
    figures: dict[str, Any] = {
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
    if far is not None:
        figures["against"] = str(args.against)
        figures["divergence"] = {key: value for key, value in asdict(far).items() if key != "perplexity"}
    if args.json:
        print(json.dumps(figures, indent=1))
        return 0
    print(
        f"perplexity {result.value:.4f} +- {result.standard_error:.4f}  ({counted(result.tokens, 'token')}, "
        f"{counted(result.windows, 'window')} of {args.window}; {figures['model']}, weights "
        f"{figures['weights']}, activations {figures['activations']}, cache {figures['cache']}, {figures['compute']}, "
        f"host {figures['host']}; {result.tokens / seconds:.0f} tokens/s)"
    )
    if far is not None:
        _print_divergence(far, args.against)
    return 0


def _print_divergence(far: "Divergence", original: str) -> None:
    tail = ", ".join(f"{_QUANTILES.get(name, name)} {value:.6f}" for name, value in far.quantiles.items())
    print(
        f"against {original} (perplexity {far.original.value:.4f}): ratio {far.ratio:.5f} +- {far.ratio_error:.5f}\n"
        f"divergence {far.mean:.6f} +- {far.mean_error:.6f} nats; {tail}\n"
        f"same first choice {far.same_first:.2%} +- {far.same_first_error:.2%}"
    )
