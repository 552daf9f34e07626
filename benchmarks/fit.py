"""How near `mlxr fit` comes to what then runs: on this machine's CPU, for each model its prediction and the run.

    python benchmarks/fit.py [MODEL ...] [--rounds N] [--json]

Without models: the storyteller alone; `make test-real` fetches real files. In each round a model is planned from a copy
of its headers (as if it were on the hub: no weights are there), then loaded and run in a process of its own, so that
whatever else the machine does meets both. Speed: a median decode step after 512 tokens. Memory: the peak of a process
that reads a prompt of 8,192 tokens (or the longest that the model takes) and writes 32. Told is the median round, and
the range.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import mlxr
from mlxr.bench.peak_memory import peak_bytes

CONTEXT = 8192
_STEPS, _LAST = 64, 32
"""Decode steps after the context that speed is told for, and after the one that memory is told for."""


def main() -> int:
    """Prints a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run", nargs=2, metavar=("TOKENS", "STEPS"), type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(_run(args.models[0], *args.run)))
        return 0
    rows = [_row(model, args.rounds) for model in args.models or ["storyteller"]]
    print(json.dumps(rows, indent=1) if args.json else _table(rows))
    return 0


def _row(model: str, rounds: int) -> dict[str, object]:
    from mlxr.fit.fit import fit
    from mlxr.fit.machine import this_machine
    from mlxr.loading.options import LoadOptions

    with TemporaryDirectory() as folder:
        headers = _headers(Path(model), Path(folder)) if model.endswith(".gguf") else model
        told, ran, peaks = [], [], []
        for _ in range(rounds):
            planned = fit(headers, this_machine("cpu"), LoadOptions(host="cpu"), CONTEXT)
            assert planned.speed is not None, planned.no_speed or planned.refusal
            told.append(planned)
            ran.append(_in_process(model, planned.speed.context, _STEPS)["tokens_per_second"])
            peaks.append(_in_process(model, planned.context - _LAST, _LAST)["peak_bytes"])
    return {
        "model": Path(model).stem,
        "speed": _spread(told, lambda one: one.speed.decode_tokens_per_second if one.speed else 0.0),
        "speed_ran": _spread(ran, float),
        "memory": _spread(told, lambda one: float(one.memory_bytes)),
        "memory_ran": _spread(peaks, float),
        "context": told[0].context,
    }


def _headers(path: Path, folder: Path) -> Path:
    """A file as long as a GGUF file, with its header alone."""
    from mlxr.hub.choose_files import HubFile
    from mlxr.hub.file_start import write_starts

    def start_of(file: HubFile, begin: int, end: int) -> bytes:
        with path.open("rb") as stream:
            stream.seek(begin)
            return stream.read(end - begin)

    start = write_starts([HubFile(path.name, path.stat().st_size, "")], folder, start_of)
    assert start is not None, "it has a header"
    return start


def _in_process(model: str, tokens: int, steps: int) -> dict[str, float]:
    command = [sys.executable, __file__, model, "--run", str(tokens), str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _run(name: str, tokens: int, steps: int) -> dict[str, float]:
    """Loads a model, reads prompts of random tokens and decodes; the first time warms up, the fastest of two counts."""
    with mlxr.load(name, host="cpu") as model:
        prompt, medians = np.random.default_rng(1).integers(0, model.artifact.plan.vocab_size, tokens).tolist(), []
        for _ in range(3):
            generation, seconds = model.start([prompt], max_tokens=steps, ignore_eos=True), []
            next(generation)
            now = time.perf_counter()
            for _ in generation:
                before, now = now, time.perf_counter()
                seconds.append(now - before)
            medians.append(statistics.median(seconds))
        return {"tokens_per_second": 1 / min(medians[1:]), "peak_bytes": peak_bytes()}


def _spread(values: Sequence[object], number: Callable[..., float]) -> tuple[float, float, float]:
    """Median, least and greatest."""
    numbers = [number(value) for value in values]
    return statistics.median(numbers), min(numbers), max(numbers)


def _table(rows: Sequence[dict[str, object]]) -> str:
    lines = [
        "| model | told tokens/s | ran | ratio | told memory at context | ran | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        speed, ran, memory, peak = (row[name] for name in ("speed", "speed_ran", "memory", "memory_ran"))
        lines.append(
            f"| {row['model']} | {_rates(speed)} | {_rates(ran)} | {speed[0] / ran[0]:.2f} | "  # type: ignore[index]
            f"{memory[0] / 2**20:.1f} MiB at {row['context']:,} | {peak[0] / 2**20:.1f} MiB | "  # type: ignore[index]
            f"{memory[0] / peak[0]:.3f} |"  # type: ignore[index]
        )
    return "\n".join(lines)


def _rates(spread: object) -> str:
    median, least, most = spread  # type: ignore[misc]
    return f"{median:.1f} ({least:.1f} to {most:.1f})"


if __name__ == "__main__":
    sys.exit(main())
