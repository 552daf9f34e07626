"""`mlxr bench`: how fast a model runs here. One process measures one configuration."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from mlxr.bench.lengths import LengthRange
from mlxr.bench.workload import LEAST_PROMPTS, PROMPT_TOKENS, Workload
from mlxr.cli.argparse_types import token_count
from mlxr.cli.model_arguments import add_model_arguments, load_model
from mlxr.compiler.errors import ContextError
from mlxr.compiler.spec.change import Changes

if TYPE_CHECKING:
    from mlxr.runtime.engine.model import Model

_UNITS = {
    "prefill_tokens_per_second": "tokens/s",
    "decode_tokens_per_second": "tokens/s",
    "load_seconds": "s",
    "time_to_first_token_seconds": "s",
    "time_to_first_token_min_seconds": "s",
    "time_to_first_token_max_seconds": "s",
    "time_to_first_token_p95_seconds": "s",
    "decode_step_ms": "ms",
    "decode_step_min_ms": "ms",
    "decode_step_max_ms": "ms",
    "decode_cpu_ms": "ms",
    "read_gb_per_second": "GB/s",
}
KEYS = {
    "model, host, ranks, threads, compute, weights, activations, cache": "what ran, and how",
    "prompt_tokens": "length of each prompt; null with --lengths, and without prompts as all figures of prompts",
    "prompt_lengths": "lengths of the prompts that were measured one at a time, in order",
    "decode_tokens, context, batch": "the workload; context: tokens in the cache when decoding starts",
    "load_seconds": "compiling (if it was not compiled yet) and loading",
    "prefill_tokens_per_second": "median over prompts, as many at a time as --batch says",
    "time_to_first_token_seconds": "of a single sequence: median over prompts; _min_, _max_ and _p95_ are its spread",
    "decode_tokens_per_second": "over all steps",
    "decode_step_ms": "median over steps; _min_ and _max_ are its spread",
    "decode_cpu_ms": "CPU time of the thread that runs the steps, mean for each of them",
    "weight_bytes_per_step": "bytes of weights that a decode step reads, each counted once",
    "read_gb_per_second": "these weights, keys and values, divided by the time of a median step; 1 GB is 10^9 bytes",
    "peak_memory_bytes": "of the whole process, mapped files included",
    "planned_bytes": "weights and arena, as planned; of several ranks, all bytes and launches are those of rank 0",
    "launches_per_decode_step": "kernels launched, on average",
    "warm_up_runs": "all runs before the measured ones, of prompts and of decoding",
    "warm_up_agreed": "whether two warm-up runs in a row agreed within 5 %, for prompts and for decoding",
}
"""What is printed, and its keys in JSON."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "bench",
        help="measure a model's speed",
        description="Measure time to first token, prefill and decode speed, and memory of one configuration. Each is "
        "warmed up for at least half a second, until two runs in a row agree within 5 % (at most 10 runs, if they last "
        "so long). Tokens are random; tokens per second count those of all sequences. An imported model (a .gguf file "
        "or a folder) is compiled for as long and as many sequences as the measurement needs.",
        epilog="Printed, with these keys in JSON and in plain words otherwise: "
        + "; ".join(f"{name} ({what})" for name, what in KEYS.items())
        + ".",
    )
    add_model_arguments(parser)
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--prompt-tokens",
        type=int,
        metavar="N",
        help=f"length of each prompt, the same as in the warm-up (default: {PROMPT_TOKENS})",
    )
    length.add_argument(
        "--lengths",
        metavar="A-B",
        help="prompts of random lengths from A to B instead, each of a length that this process has not seen yet",
    )
    parser.add_argument(
        "--prompts",
        type=int,
        default=LEAST_PROMPTS,
        metavar="N",
        help="prompts to measure, one at a time; with --batch B also N times B prompts at once; 0: only decoding "
        f"(default, and otherwise least: {LEAST_PROMPTS})",
    )
    parser.add_argument(
        "--decode-tokens", type=int, default=64, metavar="N", help="decode steps to measure (default: 64)"
    )
    parser.add_argument(
        "--context",
        dest="cached_tokens",
        type=_token_counts,
        default=[0],
        metavar="N[,N...]",
        help="tokens of each sequence that are in the cache when decoding starts; several measure decoding after each, "
        "and print a list with --json (default: 1)",
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at once (default: 1)")
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="the same seed gives the same lengths and tokens (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _token_counts(text: str) -> list[int]:
    return [token_count(each) for each in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    lengths = LengthRange.parse(args.lengths) if args.lengths is not None else None
    works = [
        Workload(args.prompt_tokens, args.decode_tokens, context, args.batch, lengths, args.prompts, args.seed)
        for context in args.cached_tokens
    ]
    for work in works:
        work.check()
    needed, option = max(work.needs() for work in works)
    start = time.perf_counter()
    try:
        model = load_model(args, Changes(needed_context=needed, sequences=args.batch))
    except ContextError as error:
        raise ContextError(f"{error}, by {option}") from error
    with model:
        return _bench(model, args, works, time.perf_counter() - start)


def _bench(model: "Model", args: argparse.Namespace, works: list[Workload], load_seconds: float) -> int:
    from mlxr.bench.measure import MOST_RUNS, measure  # noqa: PLC0415 (loads MLX)

    results = measure(model, works)
    spec, arena = model.artifact.spec, model.arena.geometry
    shown: list[dict[str, object]] = [
        {
            "model": spec.name,
            "host": model.host.name,
            "ranks": spec.parallel.size if spec.parallel is not None else 1,
            "threads": model.host.threads,
            "compute": spec.compute,
            "weights": spec.weights.default,
            "activations": str(model.types.activations),
            "cache": f"{arena.cache_type}, {arena.mode}",
            "prompt_tokens": None if work.lengths or not work.prompts else work.longest_prompt,
            "decode_tokens": work.decode_tokens,
            "context": work.start,
            "batch": work.batch,
            "load_seconds": load_seconds,
        }
        | asdict(result)
        for work, result in zip(works, results, strict=True)
    ]
    if args.json:
        print(json.dumps(shown if len(shown) > 1 else shown[0], indent=1))
    else:
        print("\n\n".join(_text(figures) for figures in shown))
    if not results[-1].warm_up_agreed:
        print(
            f"note: no two warm-up runs in a row agreed within 5 %, of at most {MOST_RUNS}: the figures will vary",
            file=sys.stderr,
        )
    return 0


def _text(figures: dict[str, object]) -> str:
    return "\n".join(f"{name.replace('_', ' '):<32} {_show(name, value)}" for name, value in figures.items())


def _show(name: str, value: object) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if name.endswith("_bytes") or "_bytes_" in name:
        assert isinstance(value, int), "bytes are whole"
        return f"{value} ({value / 2**20:.1f} MiB)"
    text = str(value)
    if isinstance(value, float):
        text = f"{value:.4g}" if value < 100 else f"{value:.1f}"
    return f"{text} {_UNITS.get(name, '')}".rstrip()
