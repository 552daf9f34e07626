"""Many requests on a GPU: MLXR's engine beside mlx-lm's `BatchGenerator`, both on the same folder.

    python benchmarks/gpu_requests.py [--models tinyllama:bf16,llama-3-8b:bf16,llama-3-8b:affine4] [--counts 16,64]

Requests come by a Poisson process, faster than either engine answers them; prompts have 50 to 1,500 tokens, answers 20
to 300. Each engine is a process that keeps its model loaded, and takes its turn in each of several rounds, with the
same tokens, new ones in each round. Models are random, and written to memory-backed files. Prints a table and writes
benchmarks/gpu-requests.json; the exit code is 1 if a row is not what it must be.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from gpu.model_files import ModelFiles, scratch_folder
from gpu.work import MODELS
from peers.models import ROOT, Files
from peers.report import machine
from serving import throughput
from serving.bench import Bench
from serving.figures import Figures

_FORMATS = ("bf16", "affine4")


def main() -> int:
    """Measures, prints, writes."""
    args = _arguments()
    figures = Figures()
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        for model, format_name in args.models:
            all_files = ModelFiles(model, Path(folder), _say)
            files = Files(model, format_name, all_files.source(format_name), all_files.peer(format_name))
            bench = Bench(
                files, os.cpu_count() or 1, args.rounds, False, figures, log, None, None, MODELS[model].shape.vocab
            )
            throughput.measure(bench, args.counts)
            figures.write(args.output / "benchmarks/gpu-requests.json", machine())
    print(figures.markdown() if args.markdown else figures.table())
    for line in (*figures.failures, *(f"{name}: {version}" for name, version in figures.versions.items())):
        print(line)
    return 1 if figures.missed() or figures.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare MLXR's engine with mlx-lm's on a GPU.")
    parser.add_argument(
        "--models",
        type=_models,
        default="tinyllama:bf16,llama-3-8b:bf16,llama-3-8b:affine4",
        help=f"as NAME:FORMAT; there is {', '.join(MODELS)}; {', '.join(_FORMATS)}",
    )
    parser.add_argument("--counts", type=_numbers, default="16,64", help="numbers of requests (16,64)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine (3)")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--output", type=Path, default=ROOT, metavar="DIR", help="where to write (the repository)")
    return parser.parse_args()


def _models(text: str) -> list[tuple[str, str]]:
    models = [tuple(word.partition(":")[::2]) for word in text.split(",")]
    if unknown := [name for name, form in models if name not in MODELS or form not in _FORMATS]:
        raise argparse.ArgumentTypeError(f"no such model or format: {', '.join(unknown)}")
    return models


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
