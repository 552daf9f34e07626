"""What determinism costs: a model fast, fast and deterministic, and on host cpu exact, in one run.

    python benchmarks/determinism.py [--models storyteller,100m] [--formats bf16,q8_0,q4_k_m] [--rounds 5] [--cpu-time]
    python benchmarks/determinism.py --host cuda --models tinyllama --formats bf16,affine4

`compute: exact` is always deterministic on target cpu; `deterministic: true` makes `fast` so. Each model is loaded
three times, and the three take turns at each task: prompts, decoding after a short and a long text, and decoding
sixteen sequences at once. Figures are medians of the rounds, and the speed beside that of `fast`. `--cpu-time` counts
the CPU time of a single thread, which other programs on the machine change less. Random models are first written to the
cache folder. Prints a table and writes benchmarks/determinism.json.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from peers.models import FORMATS, MORE_FORMATS, ROOT, SHAPES, prepare

import mlxr
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.hosts.batch import Batch, BatchRequest

_WAYS: dict[str, dict[str, Any]] = {"fast": {}, "deterministic": {"deterministic": True}}
_CPU_WAYS = _WAYS | {"exact": {"compute": "exact"}}
"""`compute` is `fast` where nothing is said."""
_SEQUENCES = 16
_STEPS = 16
_LONG = {"storyteller": 900}
"""The long text; storyteller's own context is 1024."""
_LONG_OF_OTHERS = 1000


class _Steps:
    """A loaded model that is driven step by step.

    Args:
        model: it holds `_SEQUENCES` sequences.
        clock: seconds, as they are to be counted.
    """

    def __init__(self, model: mlxr.Model, clock: Callable[[], float]) -> None:
        self._model, self._plan, self._clock = model, model.artifact.plan, clock
        self._random = np.random.default_rng(0)

    def prompt(self, length: int) -> float:
        """Seconds for a prompt of random tokens."""
        pager = self._pager()
        return self._feed(pager, pager.add_sequence(), length)

    def decode(self, context: int, sequences: int) -> float:
        """Seconds for a step of one token for each of some sequences, each after so many tokens."""
        pager = self._pager()
        ids = [pager.add_sequence() for _ in range(sequences)]
        for seq_id in ids:
            self._feed(pager, seq_id, context)
        return statistics.median(self._step(pager, [(seq_id, 1) for seq_id in ids]) for _ in range(_STEPS))

    def _pager(self) -> Pager:
        return Pager.from_geometry(self._plan.arena)

    def _feed(self, pager: Pager, seq_id: int, length: int) -> float:
        most = self._plan.max_tokens
        return sum(self._step(pager, [(seq_id, min(most, length - at))]) for at in range(0, length, most))

    def _step(self, pager: Pager, parts: list[tuple[int, int]]) -> float:
        requests = [
            BatchRequest(seq_id, self._random.integers(0, self._plan.vocab_size, n).tolist(), pager.length(seq_id))
            for seq_id, n in parts
        ]
        batch = Batch.build(requests, pager, self._plan.query_tile)
        begin = self._clock()
        self._model.host.read(self._model.host.step(batch))
        return self._clock() - begin


def main(argv: list[str] | None = None) -> int:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description="Measure what determinism costs.")
    parser.add_argument("--models", default="storyteller,100m", help=f"of storyteller, {', '.join(SHAPES)}")
    parser.add_argument("--formats", default="bf16,q8_0,q4_k_m", help="of the random models")
    parser.add_argument("--rounds", type=int, default=5, help="of which figures are the medians (5)")
    parser.add_argument("--host", default="cpu", help="cpu, cuda or metal (cpu)")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, and its CPU time")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/determinism.json", metavar="FILE")
    args = parser.parse_args(argv)
    models, formats = args.models.split(","), args.formats.split(",")
    if unknown := {*models} - {"storyteller", *SHAPES} | {*formats} - {*FORMATS, *MORE_FORMATS}:
        parser.error(f"no model or format {', '.join(sorted(unknown))}")
    rows = []
    print(f"load average {os.getloadavg()[0]:.1f}; {'CPU time of one thread' if args.cpu_time else 'all threads'}")
    print(f"{'':40}" + "".join(f"{way:>22}" for way in _ways(args.host)))
    for model in models:
        for format_name in ["q8_0"] if model == "storyteller" else formats:
            for row in _measure(model, format_name, args.rounds, args.cpu_time, args.host):
                rows.append(row)
                args.output.write_text(json.dumps({"cpu_time": args.cpu_time, "rows": rows}, indent=1) + "\n")
    return 0


def _ways(host: str) -> dict[str, dict[str, Any]]:
    return _CPU_WAYS if host == "cpu" else _WAYS


def _measure(model: str, format_name: str, rounds: int, cpu_time: bool, host: str) -> Iterator[dict[str, object]]:
    """The rows of one model: seconds for each task, by way."""
    name = model
    if model != "storyteller":
        name = str(prepare(model, format_name, cache_folder("peer-models"), _say).source)
    clock, threads = (time.process_time, 1) if cpu_time else (time.perf_counter, None)
    long = _LONG.get(model, _LONG_OF_OTHERS)
    sizes = {"sequences": _SEQUENCES, "context": long + 2 * _STEPS}
    with ExitStack() as stack:
        steps = {}
        for way, options in _ways(host).items():
            changes = mlxr.Changes(**sizes, **options)
            loaded = stack.enter_context(mlxr.load(name, host=host, threads=threads, changes=changes))
            steps[way] = _Steps(loaded, clock)
        for task, run in _tasks(long).items():
            for of_way in steps.values():
                run(of_way)  # untimed: memory is touched, caches are warm
            seconds: dict[str, list[float]] = {way: [] for way in steps}
            for _ in range(rounds):
                for way, of_way in steps.items():
                    seconds[way].append(run(of_way))
            medians = {way: statistics.median(values) for way, values in seconds.items()}
            cells = [f"{1e3 * value:9.2f} ms {medians['fast'] / value:5.2f} x" for value in medians.values()]
            print(f"{f'{model} {format_name}, {task}':40}" + "".join(f"{cell:>22}" for cell in cells), flush=True)
            yield {"model": model, "format": format_name, "task": task, "seconds": medians}


def _tasks(long: int) -> dict[str, Callable[[_Steps], float]]:
    return {
        "prompt of 64": lambda steps: steps.prompt(64),
        "prompt of 512": lambda steps: steps.prompt(512),
        "decode after 16": lambda steps: steps.decode(16, 1),
        f"decode after {long}": lambda steps: steps.decode(long, 1),
        f"decode, {_SEQUENCES} sequences": lambda steps: steps.decode(64, _SEQUENCES),
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
