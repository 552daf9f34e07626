"""MLXR's engine beside its peers and beside its own past: many requests, shared prefixes, streams, steady batches.

    python benchmarks/engine.py --llama-cpp DIR [--models storyteller,100m] [--only throughput,single] [--quick]

Each engine is a process that keeps its model loaded; the engines take turns for several rounds, and the figures are
medians. What each part measures is said in benchmarks/serving, in the module of its name. The peer on host cpu is
llama.cpp's `llama-server` with continuous batching, in the best of three settings; DIR is the folder of a build's
programs (llama-server and llama-quantize). GCC 12 or older needs CFLAGS and CXXFLAGS "-fno-tree-dse -fno-dse" where the
CPU has AMX (see cpu_peers.py). `--base` is the commit whose `Generation` the engine is compared with for one request;
its files are taken from the repository into a temporary folder.

Random models are first written to the cache folder. Prints a table and writes benchmarks/engine.json; the exit code is
1 if a row is not what it must be.
"""

import argparse
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.models import ROOT, SHAPES, prepare
from peers.report import machine
from serving import changes, overhead, prefixes, single, streams, throughput
from serving.bench import Bench
from serving.figures import Figures

from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.threads import usable_cpus

_BASE = "89237e4"
_BUSY = 0.5
_PARTS: dict[str, Callable[[Bench], None]] = {
    "throughput": throughput.measure,
    "single": single.measure,
    "overhead": overhead.measure,
    "prefixes": prefixes.measure,
    "streams": streams.measure,
    "changes": changes.measure,
}
_LONG = {"storyteller": ("prefixes", "streams"), "100m": ("overhead",)}
"""What `--quick` leaves out: what the other model shows as well, or better."""


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
    rounds = args.rounds or (1 if args.quick else 3)
    with tempfile.TemporaryFile("w+") as log, _sources(args.base) as base:
        for model, format_name in args.models:
            files = prepare(model, format_name, cache_folder("peer-models"), _say, args.llama_cpp)
            bench = Bench(files, args.threads, rounds, args.quick, figures, log, base, args.llama_cpp)
            for part in args.only:
                if args.quick and part in _LONG.get(model, ()):
                    continue
                _PARTS[part](bench)
                figures.write(args.output / "benchmarks/engine.json", machine())
    print(figures.markdown() if args.markdown else figures.table())
    for line in (*figures.failures, *(f"{name}: {version}" for name, version in figures.versions.items())):
        print(line)
    return 1 if figures.missed() else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the engine on host cpu.")
    parser.add_argument(
        "--models",
        type=_models,
        default="storyteller,100m:q8_0",
        help=f"which models, as NAME:FORMAT (storyteller,100m:q8_0); there is {', '.join(['storyteller', *SHAPES])}",
    )
    parser.add_argument("--only", type=_parts, default=",".join(_PARTS), help=f"which parts ({','.join(_PARTS)})")
    parser.add_argument("--rounds", type=int, help="turns of each engine (3; quick: 1)")
    parser.add_argument(
        "--quick", action="store_true", help="one round, one setting of llama.cpp, each part by one model"
    )
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="threads of each engine (all cores)")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="the folder of llama.cpp's programs")
    parser.add_argument(
        "--base", default=_BASE, metavar="COMMIT", help=f"compare one request with it ({_BASE}); '': no"
    )
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


@contextmanager
def _sources(commit: str) -> Iterator[Path | None]:
    """The files of a commit, in a folder; None, with a note, if there is no such commit here."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "base.tar"
        git = ["git", "-C", str(ROOT), "archive", "--output", str(archive), commit]
        done = subprocess.run(git, capture_output=True, text=True, check=False) if commit else None
        if done is None or done.returncode:
            if done:
                _say(f"no comparison with {commit}: {done.stderr.strip()}")
            yield None
            return
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="tar")
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
