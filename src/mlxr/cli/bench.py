"""`mlxr bench`: how fast a model runs here, one configuration in one process."""

import argparse
import json
import time
from dataclasses import asdict

from mlxr.cli.model_arguments import add_model_arguments, load_model
from mlxr.compiler.spec.change import Changes

_UNITS = {
    "prefill_tokens_per_second": "tokens/s",
    "decode_tokens_per_second": "tokens/s",
    "load_seconds": "s",
    "time_to_first_token_seconds": "s",
    "decode_step_ms": "ms",
    "read_gb_per_second": "GB/s",
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "bench",
        help="measure a model's speed",
        description="Measure prefill and decode speed and memory of one configuration, after a warm-up. Tokens are "
        "random; tokens per second count those of all sequences. A model that is imported (a .gguf file, a folder) is "
        "compiled for as long and as many sequences as the measurement needs.",
    )
    add_model_arguments(parser)
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="length of each prompt (512)")
    parser.add_argument("--decode-tokens", type=int, default=64, metavar="N", help="decode steps to measure (64)")
    parser.add_argument(
        "--context",
        dest="cached_tokens",
        type=int,
        default=0,
        metavar="N",
        help="tokens of each sequence in the cache when decoding starts, at least 1 (0)",
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at once (1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from mlxr.bench.measure import Workload, measure  # noqa: PLC0415 (loads MLX)

    work = Workload(args.prompt_tokens, args.decode_tokens, args.cached_tokens, args.batch)
    work.check()
    start = time.perf_counter()
    model = load_model(args, Changes(needed_context=work.needed_context, sequences=work.batch))
    load_seconds = time.perf_counter() - start
    measured = asdict(measure(model, work))
    spec, arena = model.artifact.spec, model.arena.geometry
    figures: dict[str, object] = {
        "model": spec.name,
        "host": model.host.name,
        "threads": getattr(model.host, "threads", None),
        "compute": spec.compute,
        "weights": spec.weights.default,
        "activations": str(model.types.activations),
        "cache": f"{arena.dtype}, {arena.mode}",
        "prompt_tokens": work.prompt_tokens,
        "decode_tokens": work.decode_tokens,
        "context": work.start,
        "batch": work.batch,
        "load_seconds": load_seconds,
    } | measured
    if args.json:
        print(json.dumps(figures, indent=1))
        return 0
    for name, value in figures.items():
        print(f"{name:<28} {_show(name, value)}")
    return 0


def _show(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name.endswith("_bytes") or "_bytes_" in name:
        assert isinstance(value, int), "bytes are whole"
        return f"{value} ({value / 2**20:.1f} MiB)"
    text = str(value)
    if isinstance(value, float):
        text = f"{value:.4g}" if value < 100 else f"{value:.1f}"
    return f"{text} {_UNITS.get(name, '')}".rstrip()
