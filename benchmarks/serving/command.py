"""What the commands of these benchmarks share: their options, and a run that measures, prints and writes."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from peers.models import ROOT, SHAPES, prepare
from peers.report import machine

from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.machine.threads import usable_cpus
from serving.bench import Bench
from serving.figures import Figures

Parts = Mapping[str, Callable[[Bench], None]]
"""What can be measured, by the names that `--only` takes."""
_BUSY = 0.5


def option_parser(description: str, parts: Parts) -> argparse.ArgumentParser:
    """A parser of the options that all commands have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--models",
        type=_models,
        default="storyteller,100m:q8_0",
        help=f"which models, as NAME:FORMAT (storyteller,100m:q8_0); there is {', '.join(['storyteller', *SHAPES])}",
    )
    all_parts = ",".join(parts)
    parser.add_argument("--only", type=_parts(parts), default=all_parts, help=f"which parts ({all_parts})")
    parser.add_argument("--rounds", type=int, help="turns of each engine or server (3; quick: 1)")
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="threads of each engine (all cores)")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="the folder of llama.cpp's programs")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--output", type=Path, default=ROOT, metavar="DIR", help="where to write (the repository)")
    return parser


def run(
    args: argparse.Namespace,
    parts: Parts,
    name: str,
    *,
    is_quick: bool = False,
    base: Path | None = None,
    left_out: Mapping[str, Sequence[str]] | None = None,
) -> int:
    """Measures the parts of each model, prints a table, and writes benchmarks/NAME.json.

    Args:
        args: what the parser of `option_parser` gave.
        parts: all parts.
        name: of the file.
        is_quick: whether what takes long is cut short.
        base: the folder with the files of the commit to compare with, if there is one.
        left_out: parts that are not measured, by model.

    Returns:
        The exit code: 1 if a row is not what it must be.
    """
    figures = Figures()
    if figures.load_before > _BUSY:
        say(f"warning: the load average is {figures.load_before:.1f}: other processes will distort the figures")
    rounds = args.rounds or (1 if is_quick else 3)
    with tempfile.TemporaryFile("w+") as log:
        for model, format_name in args.models:
            files = prepare(model, format_name, cache_folder("peer-models"), say, args.llama_cpp)
            bench = Bench(files, args.threads, rounds, is_quick, figures, log, base, args.llama_cpp)
            for part in args.only:
                if part in (left_out or {}).get(model, ()):
                    continue
                parts[part](bench)
                figures.write(args.output / f"benchmarks/{name}.json", machine())
    print(figures.markdown() if args.markdown else figures.table())
    for line in (*figures.failures, *(f"{series}: {version}" for series, version in figures.versions.items())):
        print(line)
    return 1 if figures.missed() else 0


def say(text: str) -> None:
    """Tells the user what is done."""
    print(text, file=sys.stderr, flush=True)


def exit_when_ended() -> None:
    """Makes SIGTERM an ordinary exit, so that workers and temporary files go."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def _models(text: str) -> list[tuple[str, str]]:
    models = []
    for word in text.split(","):
        name, _, format_name = word.partition(":")
        if name != "storyteller" and name not in SHAPES:
            raise argparse.ArgumentTypeError(f"no model {name}; there is storyteller, {', '.join(SHAPES)}")
        models.append((name, format_name or "q8_0"))
    return models


def _parts(parts: Parts) -> Callable[[str], list[str]]:
    def chosen(text: str) -> list[str]:
        for part in text.split(","):
            if part not in parts:
                raise argparse.ArgumentTypeError(f"no part {part}; there is {', '.join(parts)}")
        return text.split(",")

    return chosen
