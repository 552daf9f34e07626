"""MLXR's cpu host against llama.cpp and mlx-lm: the same weights, the same threads, in one run.

    python benchmarks/cpu_peers.py [--models tinyllama,100m] [--formats bf16,q4_0] [--rounds 3] [--threads N]

Rows of the engine drive each engine step by step. Rows of the user's path load MLXR by `mlxr.load` with default
options, give it prompts of random lengths that the process has not seen, and take tokens as they come. Each engine is a
process that keeps its model loaded. A measurement asks the engines in turn, for several rounds, and takes medians, so
that whatever slows the machine down slows all of them. llama.cpp runs with and without flash attention, and the better
of the two counts. The machine's read bandwidth is measured in between. Random models are first written to the cache
folder. Needs the `bench` extra; writes benchmarks/peers.json, benchmarks/RESULTS.md and docs/cpu-peers.png.

llama.cpp built by GCC 12 or older crashes on CPUs with AMX, because that compiler drops stores to its tile
configuration. Build it with CFLAGS and CXXFLAGS set to "-fno-tree-dse -fno-dse"; `--llama-cpp DIR` takes a build from a
folder of its own (pip install --target DIR).
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from peers.bandwidth import Bandwidth
from peers.models import FORMATS, MORE_FORMATS, ROOT, SHAPES, Files, prepare
from peers.report import USER, Report
from peers.worker import EngineError, Worker, random_tokens

from mlxr.bench.lengths import LengthRange, UnseenLengths
from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.machine.threads import usable_cpus

_LONG = 2000
_BUSY = 0.5
_DECODE_STEPS = {"tinyllama": 24, "100m": 64, "storyteller": 128}
_PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlxr": ("peers.with_mlxr", {}),
    "mlxr-paged": ("peers.with_mlxr", {"paged": True}),
    "mlxr-batch": ("peers.with_mlxr", {"batch": 16, "context": 160}),
    "llama.cpp": ("peers.with_llama_cpp", {}),
    "llama.cpp-no-flash": ("peers.with_llama_cpp", {"flash": False}),
    "mlx-lm": ("peers.with_mlx_lm", {}),
    "mlxr-user": ("peers.user_mlxr", {}),
    "mlxr-user-batch": ("peers.user_mlxr", {"batch": 16}),
}
_LENGTHS = LengthRange(300, 700)
_LLAMA = ("llama.cpp", "llama.cpp-no-flash")


class UserDecode(NamedTuple):
    """Decoding after prompts, as users get it."""

    name: str
    engine: str
    context: int
    batch: int


_USER_DECODES = (
    UserDecode(f"{USER}decode after 512", "mlxr-user", 512, 1),
    UserDecode(f"{USER}decode, 16 prompts", "mlxr-user-batch", 64, 16),
)


class Task(NamedTuple):
    """One measurement, and the engines that take part in it."""

    name: str
    do: str
    details: dict[str, int]
    engines: tuple[str, ...]


_AFTER_FIRST = 3
"""Tokens that follow the first token of a user's prompt: users read on, so an engine may run ahead."""


def main() -> int:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description="Compare the cpu host with llama.cpp and mlx-lm.")
    parser.add_argument("--models", default="storyteller,100m,tinyllama", help="which models (all)")
    parser.add_argument(
        "--formats",
        default=",".join(FORMATS),
        help=f"which formats ({','.join(FORMATS)}); there is also {', '.join(MORE_FORMATS)}",
    )
    parser.add_argument("--engines", default=",".join(_PEERS), help="which engines (all)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (3)")
    parser.add_argument("--path", choices=("all", "user", "engine"), default="all", help="which rows (all)")
    parser.add_argument("--prompts", type=int, default=8, help="of the user's path, of unseen lengths (8)")
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="threads of each engine (all cores)")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="take llama-cpp-python from this folder")
    parser.add_argument("--output", type=Path, default=ROOT, metavar="DIR", help="where to write (the repository)")
    args = parser.parse_args()
    report = Report(args.threads, args.rounds)
    if report.load_before > _BUSY:
        _say(f"warning: the load average is {report.load_before:.1f}: other processes will distort the figures")
    bandwidth = Bandwidth(args.threads)
    chosen = args.engines.split(",")
    with tempfile.TemporaryFile("w+") as log:
        for model, format_name in _configurations(args.models.split(","), args.formats.split(",")):
            files = prepare(model, format_name, cache_folder("peer-models"), _say)
            report.add_model(files)
            run = _Run(files, args, chosen, report, bandwidth, log)
            run.measure_loaded()
            if args.path != "user":
                run.measure_cold()
            report.write(args.output)
            print(report.table(model, format_name), flush=True)
    report.draw(args.output)
    return 0


def _configurations(models: list[str], formats: list[str]) -> Iterator[tuple[str, str]]:
    for model in models:
        if model != "storyteller" and model not in SHAPES:
            raise SystemExit(f"no model {model}; there is storyteller, {', '.join(SHAPES)}")
        for format_name in ("q8_0",) if model == "storyteller" else formats:
            if format_name not in (*FORMATS, *MORE_FORMATS):
                raise SystemExit(f"no format {format_name}; there is {', '.join((*FORMATS, *MORE_FORMATS))}")
            yield model, format_name


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Run:
    """All measurements of one model in one format."""

    def __init__(
        self,
        files: Files,
        args: argparse.Namespace,
        chosen: list[str],
        report: Report,
        bandwidth: Bandwidth,
        log: TextIO,
    ) -> None:
        self._files, self._args = files, args
        self._able = [engine for engine in chosen if files.format != "affine4" or engine not in _LLAMA]
        self._report, self._bandwidth, self._log = report, bandwidth, log
        # The bundled model's own context is 1024.
        self._long = 750 if files.model == "storyteller" else _LONG
        self._steps = _DECODE_STEPS[files.model]
        self._workers: dict[str, Worker] = {}
        self._vocab = 0

    def _start(self, engine: str) -> Worker | None:
        """The engine with the model loaded, or None when it cannot; the report says why."""
        module, options = _PEERS[engine]
        folder = str(self._args.llama_cpp) if self._args.llama_cpp and engine in _LLAMA else ""
        worker = Worker(module, self._args.threads, self._log, folder)
        details: dict[str, Any] = {
            "source": str(self._files.source),
            "folder": str(self._files.folder),
            "format": self._files.format,
            "threads": self._args.threads,
            "batch": 1,
            "context": self._long + 2 * self._steps,
        }
        try:
            told = worker.ask("load", **(details | options))
        except EngineError as error:
            self._fail(engine, "load", error)
            worker.close()
            return None
        self._report.add_engine(engine, told)
        self._vocab = told.get("vocab", self._vocab)
        if engine == "mlxr":
            self._report.add_plan(self._files, told["planned_bytes"])
        return worker

    def _fail(self, engine: str, what: str, error: EngineError) -> None:
        _say(f"{engine}, {self._files.model} {self._files.format}, {what}: {error}")
        self._report.add_failure(self._files, engine, what, str(error))

    def measure_loaded(self) -> None:
        """Prefill and decode, all engines taking turns."""
        for engine in self._able:
            if self._takes_part(engine) and (worker := self._start(engine)):
                self._workers[engine] = worker
        for task in self._tasks() if self._args.path != "user" else ():
            _say(f"{self._files.model} {self._files.format}: {task.name}")
            self._ask_in_turns(task)
        if self._args.path != "engine":
            self._ask_users()
            for decode in _USER_DECODES:
                _say(f"{self._files.model} {self._files.format}: {decode.name}")
                self._time_tokens_of_users(decode)
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _takes_part(self, engine: str) -> bool:
        """Whether an engine takes part in any of the wanted rows."""
        skipped = {"user": ("mlxr", "mlxr-paged", "mlxr-batch"), "engine": ("mlxr-user", "mlxr-user-batch")}
        return engine not in skipped.get(self._args.path, ())

    def _tasks(self) -> list[Task]:
        """Long contexts first: engines then cut their sequences instead of reading prompts again."""
        steps, single = self._steps, ("mlxr", *_LLAMA)
        tasks = [Task("prefill 512", "prefill", {"tokens": 512}, single)]
        for context in (self._long, 512, 5):
            engines = {5: (*single, "mlxr-paged", "mlx-lm"), 512: single}.get(context, (*single, "mlxr-paged"))
            details = {"context": context, "batch": 1, "tokens": steps}
            tasks.append(Task(f"decode after {context}", "decode", details, engines))
        for batch in (4, 16):
            details = {"context": 5, "batch": batch, "tokens": steps // 2}
            tasks.append(Task(f"decode, batch {batch}", "decode", details, ("mlxr-batch", *_LLAMA)))
        return tasks

    def _ask_in_turns(self, task: Task) -> None:
        for number in range(self._args.rounds + 1):
            if number:
                self._report.add_bandwidth(self._bandwidth.measure())
            for engine in task.engines:
                worker = self._workers.get(engine)
                if worker is None or (engine == "mlx-lm" and number != 1):  # slow: once is enough
                    continue
                try:
                    reply = worker.ask(task.do, **task.details)
                except EngineError as error:
                    self._fail(engine, task.name, error)
                    self._workers.pop(engine).close()
                    continue
                if number:  # the first round warms up
                    self._report.add(self._files, engine, task.name, reply["tokens"] / reply["seconds"])

    def _ask_users(self) -> None:
        """Gives prompts of lengths that no process has seen, each to the engines in turns; the first one warms up."""
        name = f"{USER}prompts of {_LENGTHS}"
        _say(f"{self._files.model} {self._files.format}: {name}")
        lengths = UnseenLengths(seen=[512]).take(_LENGTHS, self._args.prompts + 1, "--prompts")
        for number, length in enumerate(lengths):
            slow = self._slow if number == 1 else ()  # once is enough
            for engine in ("mlxr-user", *_LLAMA, *slow):
                if worker := self._workers.get(engine):
                    try:
                        seconds = self._first_token_seconds(engine, worker, length, number)
                    except EngineError as error:
                        self._fail(engine, name, error)
                        self._workers.pop(engine).close()
                        continue
                    if number:
                        self._report.add(self._files, engine, name, seconds)

    @property
    def _slow(self) -> tuple[str, ...]:
        """mlx-lm where it takes a minute or two and not ten, which is in 16-bit formats."""
        return ("mlx-lm",) if self._files.format in ("f16", "bf16") else ()

    def _time_tokens_of_users(self, decode: UserDecode) -> None:
        """Tokens per second after the first of each prompt, engines in turns; the first round warms up."""
        for number in range(self._args.rounds + 1):
            if number:
                self._report.add_bandwidth(self._bandwidth.measure())
            slow = self._slow if number == 1 and decode.batch == 1 else ()
            for engine in (decode.engine, *_LLAMA, *slow):
                if worker := self._workers.get(engine):
                    try:
                        speed = self._tokens_per_second(worker, decode, is_user=engine == decode.engine, seed=number)
                    except EngineError as error:
                        self._fail(engine, decode.name, error)
                        self._workers.pop(engine).close()
                        continue
                    if number:
                        self._report.add(self._files, engine, decode.name, speed)

    def _tokens_per_second(self, worker: Worker, decode: UserDecode, *, is_user: bool, seed: int) -> float:
        tokens = self._steps if decode.batch == 1 else self._steps // 2
        if not is_user:
            reply = worker.ask("decode", context=decode.context, batch=decode.batch, tokens=tokens)
            return float(reply["tokens"] / reply["seconds"])
        seeds = range(decode.batch * seed, decode.batch * (seed + 1))
        prompts = [random_tokens(decode.context, self._vocab, seed) for seed in seeds]
        return float(tokens * decode.batch / worker.ask("stream", prompts=prompts, tokens=tokens)["next_seconds"])

    def _first_token_seconds(self, engine: str, worker: Worker, length: int, seed: int) -> float:
        if engine != "mlxr-user":
            return float(worker.ask("prefill", tokens=length)["seconds"])
        prompt = random_tokens(length, self._vocab, seed)
        return float(worker.ask("stream", prompts=[prompt], tokens=_AFTER_FIRST)["first_seconds"])

    def measure_cold(self) -> None:
        """Seconds from starting a process to the first token, with its files cached, and the most memory it takes."""
        cold = [engine for engine in ("mlxr", "llama.cpp") if engine in self._able]
        for number in range(self._args.rounds + 1):
            for engine in cold:
                worker = self._start(engine)
                if worker is None:
                    continue
                try:
                    worker.ask("first_token")
                    seconds = worker.age()
                    if number == 0:
                        worker.ask("prefill", tokens=512)
                        worker.ask("decode", context=5, batch=1, tokens=8)
                        peak = worker.ask("memory")["peak_bytes"]
                        self._report.add(self._files, engine, "peak memory", peak)
                    else:
                        self._report.add(self._files, engine, "cold start", seconds)
                except EngineError as error:
                    self._fail(engine, "cold start", error)
                worker.close()


if __name__ == "__main__":
    sys.exit(main())
