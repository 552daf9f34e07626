"""MLXR against llama.cpp, mlx-lm (and PyTorch's compiled step) on one GPU: the same shapes and weights, in one run.

    python benchmarks/gpu_peers.py [--only '*/user-*,llama-3-8b/*/decode-512'] [--torch] [--minutes 9]

There are two kinds of rows. Rows of the user's path run what users run: a model on disk (a bf16 folder, mlx-lm's 4
bits, a GGUF file in Q4_K_M), loaded by `mlxr.load` with default options and by mlx-lm's `load`, each in its own
process, and prompts of random lengths that the process has not seen. mlx-lm's logits on the same numbers judge every
answer's tokens. With `--llama-bench FILE --llama-batched-bench FILE`, llama.cpp's programs time the work of rows in
bf16 and Q4_K_M on GGUF files of the same numbers, as they do for `llama_bench.py`. Rows of the engine measure one piece
of work on weights made on the device, after its output has been checked against `reference` in f32. A row with wrong
output is not reported.

The engines take turns: in users' rows prompt by prompt; in engines' rows for several rounds, with the device's own
limits (copying memory, multiplying bf16 matrices) measured in between. Figures are medians; prompts also have the 95th
percentile.

Weights are random. Rows are added to DIR/benchmarks/gpu-peers.json, and a later run continues with that file: rows that
are there are not measured again unless --again is given. Each model and format has its own process; if it dies, only
the row that it was measuring is lost. Needs mlx-lm, and matplotlib for the picture, DIR/docs/gpu-peers.png. `--list`
shows the rows with the bytes and operations of each; `--report` only makes table and picture; `--toy` measures a tiny
model where there is no GPU, to try the benchmark itself.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path
from typing import TextIO

from gpu.results import Results
from gpu.user_rows import UserRow
from gpu.work import Row, chosen_rows
from peers.models import ROOT

_GRACE = 60.0
"""Seconds past the deadline that the current row may take."""


def main() -> int:
    """Measures, prints, writes."""
    args = _arguments()
    rows = chosen_rows(args.only, ("toy",) if args.toy else ("tinyllama", "llama-3-8b"))
    if args.list:
        print("\n".join(_floor(row) for row in rows))
        return 0
    results = Results(args.output / "benchmarks/gpu-peers.json", args.resume)
    if args.in_process:
        _measure_here(rows, args, results)
        return 0
    if not args.report:
        rows = [row for row in rows if args.again or not results.has(row)]
        results.start(_machine(), " ".join(["python benchmarks/gpu_peers.py", *map(shlex.quote, sys.argv[1:])]))
        args.deadline = time.time() + 60 * args.minutes
        for _, group in groupby(rows, key=lambda row: row.process):
            results = _measure_group(list(group), args, results)
    _draw(results, args.output / "docs/gpu-peers.png")
    print(results.markdown() if args.markdown else results.table())
    return 1 if any(row.id in results.data["failures"] for row in rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare MLXR with mlx-lm on a GPU.")
    parser.add_argument("--only", default="", metavar="PATTERNS", help="rows to measure, with * (all)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine (5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn, about (0.5)")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no row after so many (60)")
    parser.add_argument("--turns", type=int, default=3, help="of each engine in users' rows of decoding (3)")
    parser.add_argument("--llama-bench", default="", metavar="FILE", help="measure llama.cpp by this program")
    parser.add_argument("--llama-batched-bench", default="", metavar="FILE", help="likewise, rows of several sequences")
    parser.add_argument("--host", help="MLXR's host (of engine rows cuda; of users' the default)")
    parser.add_argument("--chunk", type=int, default=2048, help="most prompt tokens of one of MLXR's steps (2048)")
    parser.add_argument(
        "--torch",
        nargs="?",
        const="*",
        default="",
        metavar="PATTERN",
        help="measure PyTorch's compiled step too, in bf16 decode rows of this name (all); each compiles for a minute",
    )
    parser.add_argument("--torch-mode", default="reduce-overhead", help="of torch.compile, or eager (reduce-overhead)")
    parser.add_argument("--again", action="store_true", help="measure rows that the file has already")
    parser.add_argument("--output", type=Path, default=ROOT, metavar="DIR", help="where to write (the repository)")
    parser.add_argument("--resume", type=Path, metavar="JSON", help="go on with this file if DIR has none")
    parser.add_argument("--toy", action="store_true", help="a tiny model")
    parser.add_argument("--list", action="store_true", help="show the rows, measure nothing")
    parser.add_argument("--report", action="store_true", help="make table and picture of the file, measure nothing")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--in-process", action="store_true", help="measure in this process, for debugging")
    parser.add_argument("--deadline", type=float, default=float("inf"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _floor(row: Row | UserRow) -> str:
    if isinstance(row, UserRow):
        return f"{row.id:<36} {row.title}"
    return f"{row.id:<36} {row.size_bytes / 1e9:8.3f} GB {row.operations / 1e12:9.4f} TFLOP"


def _machine() -> dict[str, str]:
    import mlx.core as mx
    import mlx_lm

    from mlxr.compiler.version import VERSION

    device = mx.device_info().get("device_name") or str(mx.default_device())
    return {
        "device": str(device),
        "mlxr": f"mlxr {VERSION}",
        "mlx": f"mlx {mx.__version__}",
        "mlx-lm": f"mlx-lm {mlx_lm.__version__}",
    }


def _measure_group(rows: list[Row | UserRow], args: argparse.Namespace, results: Results) -> Results:
    """Measures rows in a process of its own. If it dies, the current row is given up, and the rows after it go on."""
    while rows and time.time() < args.deadline:
        taken_over = ["rounds", "turns", "seconds", "chunk", "torch", "torch_mode", "output", "deadline"]
        taken_over += ["llama_bench", "llama_batched_bench"]
        options = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in taken_over]
        options += ["--toy"] if args.toy else []
        options += [f"--host={args.host}"] if args.host else []
        only = ",".join(row.id for row in rows)
        process = subprocess.Popen([sys.executable, __file__, "--in-process", f"--only={only}", *options])
        try:
            code = process.wait(timeout=max(0.0, args.deadline - time.time()) + _GRACE)
            why = f"its process ended with code {code}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code, why = 1, "it took too long"
        results = Results(results.path)
        stopped = [row for row in rows if row.id == results.data["doing"]]
        if code == 0 or not stopped:
            if code:
                print(f"{rows[0].process}: {why} before its first row", file=sys.stderr)
            return results
        results.fail(stopped[0], why)
        rows = rows[rows.index(stopped[0]) + 1 :]
    return results


def _measure_here(rows: list[Row | UserRow], args: argparse.Namespace, results: Results) -> None:
    engine_args = argparse.Namespace(**{**vars(args), "host": args.host or "cuda"})
    with tempfile.TemporaryFile("w+") as log:
        for _, of_process in groupby(rows, key=lambda row: row.process):
            group = list(of_process)
            engines = [row for row in group if isinstance(row, Row)]
            if not engines:
                _measure_users([row for row in group if isinstance(row, UserRow)], args, results, log)
            elif engines[0].kind == "first-token":
                for row in engines:
                    _measure_first_token(row, engine_args, results)
            else:
                from gpu.group import Group

                Group(engines, engine_args, results, log).run()


def _measure_users(rows: list[UserRow], args: argparse.Namespace, results: Results, log: TextIO) -> None:
    from gpu.model_files import ModelFiles, scratch_folder
    from gpu.say import say
    from gpu.user_group import UserGroup

    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        files = ModelFiles(rows[0].model, Path(folder), say)
        for _, of_format in groupby(rows, key=lambda row: row.format):
            if time.time() < args.deadline:
                with UserGroup(list(of_format), files, args, results, log) as group:
                    group.run()


def _measure_first_token(row: Row, args: argparse.Namespace, results: Results) -> None:
    from gpu.check import WrongOutputError, check_against_peer
    from gpu.first_token import measure_row
    from gpu.model_files import scratch_folder

    results.begin(row)
    try:
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
            seconds, ours, theirs = measure_row(row, args.host, min(args.rounds, 3), Path(folder))
        result = {"seconds": seconds, "peer_error": check_against_peer(ours, theirs)}
    except (RuntimeError, OSError, WrongOutputError) as error:
        results.fail(row, str(error))
        print(f"{row.id}: {error}", file=sys.stderr)
    else:
        results.add(row, result)
        print(results.line(row), file=sys.stderr)


def _draw(results: Results, path: Path) -> None:
    try:
        from gpu.chart import draw

        draw(results, path)
    except ModuleNotFoundError as error:
        print(f"no picture: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
