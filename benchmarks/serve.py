"""`mlxr serve` over the engine alone, and beside other servers: over HTTP, as its users ask it.

    python benchmarks/serve.py [--llama-cpp DIR] [--models storyteller,100m] [--only over_engine,servers]

Each server is started by its own command, in a process of its own, and asked by a client that takes next to no time;
they take turns, and the figures are medians. The peers are llama.cpp's `llama-server` (DIR is the folder of a build's
programs, see engine.py) and `mlx_lm.server`, for the bundled model. What each part measures is said in
benchmarks/serving, in the module of its name.

Prints a table and writes benchmarks/serve.json; the exit code is 1 if a row is not what it must be.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from peers.models import ROOT, SHAPES, prepare
from peers.report import machine
from serving import over_engine, servers
from serving.bench import Bench
from serving.figures import Figures

from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.threads import usable_cpus

_BUSY = 0.5
_PARTS: dict[str, Callable[[Bench], None]] = {"over_engine": over_engine.measure, "servers": servers.measure}


def main() -> int:
    """Measures, prints, writes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that workers and temporary files go
    args = _arguments()
    figures = Figures()
    if figures.load_before > _BUSY:
        print(
            f"warning: the load average is {figures.load_before:.1f}: other processes will distort the figures",
            file=sys.stderr,
        )
    with tempfile.TemporaryFile("w+") as log:
        for model, format_name in args.models:
            files = prepare(model, format_name, cache_folder("peer-models"), _say, args.llama_cpp)
            bench = Bench(files, args.threads, args.rounds, False, figures, log, None, args.llama_cpp)
            for part in args.only:
                _PARTS[part](bench)
                figures.write(args.output / "benchmarks/serve.json", machine())
    print(figures.markdown() if args.markdown else figures.table())
    for line in (*figures.failures, *(f"{name}: {version}" for name, version in figures.versions.items())):
        print(line)
    return 1 if figures.missed() else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the server on host cpu.")
    parser.add_argument(
        "--models",
        type=_models,
        default="storyteller,100m:q8_0",
        help=f"which models, as NAME:FORMAT (storyteller,100m:q8_0); there is {', '.join(['storyteller', *SHAPES])}",
    )
    parser.add_argument("--only", type=_parts, default=",".join(_PARTS), help=f"which parts ({','.join(_PARTS)})")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each server (3)")
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="threads of each engine (all cores)")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="the folder of llama.cpp's programs")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--output", type=Path, default=ROOT, metavar="DIR", help="where to write (the repository)")
    return parser.parse_args()


def _models(text: str) -> list[tuple[str, str]]:
    models = []
    for word in text.split(","):
        name, _, format_name = word.partition(":")
        if name != "storyteller" and name not in SHAPES:
            raise argparse.ArgumentTypeError(f"no model {name}; there is storyteller, {', '.join(SHAPES)}")
        models.append((name, format_name or "q8_0"))
    return models


def _parts(text: str) -> list[str]:
    for part in text.split(","):
        if part not in _PARTS:
            raise argparse.ArgumentTypeError(f"no part {part}; there is {', '.join(_PARTS)}")
    return text.split(",")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
