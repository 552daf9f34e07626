"""MLXR against llama.cpp by the commands that each has for it, in turns, on one file.

    python benchmarks/llama_bench.py --llama-bench FILE [--models glm-4.7-flash,MODEL.gguf] [--formats q4_k_m,q8_0]
    python benchmarks/llama_bench.py --llama-bench FILE --llama-batched-bench FILE --gpu --whole --formats q4_k_m,bf16 \
        --models tinyllama,llama-3-8b

Models are files, or names of published shapes of which files with random weights are made, with few layers unless they
are to be --whole. Both engines use the GPU if there is one (llama.cpp with all layers on it), else as many threads. A
turn starts each program anew, and figures are medians over turns: tokens per second of all sequences while they decode,
and of prompts; prompts of unseen lengths have lengths that the process has not met. On a GPU the share of its rate of
copies (1 GiB by the driver, bytes read and written) is told that the bytes of a decode step have, with each weight read
once, and the CPU time that our thread takes for a step. With --busy, a process that never waits runs on each CPU beside
them. Prints a table, and with --output adds rows to a file, of which `--report` prints all. A row that fails is told at
the end, and the others go on.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers.beside_llama import ROWS, Beside, FailedError, Programs, copy_bytes_per_second
from peers.shape_files import SHAPES, WHOLE_LAYERS
from peers.shape_writer import FORMATS, write_shape

from mlxr.runtime.machine.threads import usable_cpus

_HEAD = (
    "| model | format | work | MLXR | llama.cpp | ratio | first token | of copies | CPU of a step |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
Row = dict[str, Any]
"""Model, format and row; tokens per second and seconds to the first token by engine, one for each turn; the bytes of a
decode step, and its milliseconds of CPU time; and the device's rates of copies."""


def main() -> int:
    """Measures and prints."""
    args = _arguments()
    rows: list[Row] = (
        json.loads(args.output.read_text(encoding="utf-8")) if args.output and args.output.is_file() else []
    )
    print(_HEAD, flush=True)
    if args.report:
        print("\n".join(map(line, rows)))
        return 0
    failures = []
    with tempfile.TemporaryDirectory() as temporary, _busy(usable_cpus() if args.busy else 0):
        for name, format_name, path in _files(args, Path(args.folder or temporary)):
            start = time.perf_counter()
            beside = Beside(path, _programs(args))
            measured = _measure(name, format_name, beside, args)
            for row in measured:
                print(line(row), flush=True)
            failures += [
                f"{name} {format_name} {row}, {engine}: {why}" for (row, engine), why in beside.failures.items()
            ]
            print(f"{name} {format_name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
            if args.output:
                keys = [_key(row) for row in measured]
                rows = [row for row in rows if _key(row) not in keys] + measured
                args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            if name in SHAPES and not args.folder:
                path.unlink()
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare MLXR with llama.cpp on GGUF files.")
    parser.add_argument("--llama-bench", metavar="FILE", help="llama.cpp's program of this name")
    parser.add_argument("--llama-batched-bench", metavar="FILE", help="likewise, for rows of several sequences")
    parser.add_argument("--models", default=",".join(SHAPES), help=f"files or shapes ({', '.join(SHAPES)})")
    parser.add_argument("--formats", default="q4_k_m,q8_0", help=f"of shapes, of {', '.join(FORMATS)} (q4_k_m,q8_0)")
    layers = parser.add_mutually_exclusive_group()
    layers.add_argument("--layers", type=int, help="of shapes (as few as a CPU is timed with: 4, 5, 12)")
    layers.add_argument("--whole", action="store_true", help=f"all layers of {', '.join(WHOLE_LAYERS)}")
    parser.add_argument("--rows", help=f"of {', '.join(ROWS)} (decode, prompt, unseen; with the second program all)")
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="of both engines, on a CPU (all)")
    parser.add_argument("--gpu", action="store_true", help="on an NVIDIA card")
    parser.add_argument("--experts-on-cpu", type=int, metavar="N", help="leave N layers' experts to the CPU (-ncmoe N)")
    parser.add_argument("--busy", action="store_true", help="with a busy process on each CPU")
    parser.add_argument("--turns", type=int, default=3, help="runs of each engine (3)")
    parser.add_argument("--repetitions", type=int, default=3, help="of llama-bench in a turn (3)")
    parser.add_argument("--most-seconds", type=float, default=300.0, help="that a process may take (300)")
    parser.add_argument("--folder", metavar="DIR", help="where files are kept (a temporary one)")
    parser.add_argument("--output", metavar="FILE", type=Path, help="a JSON file to which rows are added")
    parser.add_argument("--report", action="store_true", help="only print the rows of --output")
    args = parser.parse_args()
    if args.rows is None:
        args.rows = ",".join(ROWS) if args.llama_batched_bench else "decode,prompt,unseen"
    if args.llama_bench is None and not args.report:
        parser.error("--llama-bench is needed")
    if unknown := [*{*args.rows.split(",")} - {*ROWS}, *{*args.formats.split(",")} - {*FORMATS}]:
        parser.error(f"unknown: {', '.join(unknown)}; rows are {', '.join(ROWS)}, formats {', '.join(FORMATS)}")
    return args


@contextmanager
def _busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _programs(args: argparse.Namespace) -> Programs:
    return Programs(
        args.llama_bench,
        args.llama_batched_bench,
        args.gpu,
        args.threads,
        args.experts_on_cpu,
        args.repetitions,
        args.most_seconds,
    )


def _files(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, Path]]:
    for model in args.models.split(","):
        if model not in SHAPES:
            yield Path(model).stem, "", Path(model)
            continue
        for format_name in args.formats.split(","):
            layers = WHOLE_LAYERS[model] if args.whole else args.layers
            yield model, format_name, write_shape(model, format_name, folder, layers)


def _measure(name: str, format_name: str, beside: Beside, args: argparse.Namespace) -> list[Row]:
    """Rows for which both engines have figures."""
    chosen = [row for row in ROWS if row in args.rows.split(",")]
    rows: dict[str, Row] = {
        row: {"model": name, "format": format_name, "row": row, "rates": {}, "first_seconds": {}, "copies": []}
        for row in chosen
    }
    for _ in range(args.turns):
        try:
            copies = [copy_bytes_per_second()] if args.gpu else []
        except FailedError as error:
            beside.failures["copies", "mlx"] = str(error)
            copies = []
        for row, engine, figure in beside.measure(chosen):
            rows[row]["rates"].setdefault(engine, []).append(figure.rate)
            if figure.first_seconds is not None:
                rows[row]["first_seconds"].setdefault(engine, []).append(figure.first_seconds)
            if figure.step_bytes is not None:
                rows[row]["step_bytes"] = figure.step_bytes
            if figure.cpu_ms is not None:
                rows[row].setdefault("cpu_ms", []).append(figure.cpu_ms)
        for row in rows.values():
            row["copies"] += copies
    return [row for row in rows.values() if row["rates"]]


def _key(row: Row) -> tuple[str, str, str]:
    return row["model"], row["format"], row["row"]


def line(row: Row) -> str:
    """A row of the table; an engine that failed has no figure."""
    work = ROWS[row["row"]]
    ours, theirs = (
        statistics.median(row["rates"][engine]) if row["rates"].get(engine) else None
        for engine in ("mlxr", "llama.cpp")
    )
    first = [f"{1e3 * statistics.median(row['first_seconds'][engine]):.1f} ms" for engine in row["first_seconds"]]
    share = ""
    if ours and row["copies"] and row.get("step_bytes"):
        share = f"{100 * row['step_bytes'] * ours / work.batch / statistics.median(row['copies']):.0f} %"
    ratio = f"{ours / theirs:.2f} x" if ours and theirs else ""
    used = f"{1e3 * statistics.median(row['cpu_ms']):.0f} us" if row["copies"] and row.get("cpu_ms") else ""
    cells = [row["model"], row["format"], work.title, _number(ours), _number(theirs), ratio]
    return f"| {' | '.join([*cells, ', '.join(first), share, used])} |"


def _number(rate: float | None) -> str:
    return "failed" if rate is None else f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


if __name__ == "__main__":
    sys.exit(main())
