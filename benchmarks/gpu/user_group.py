"""Measures user rows of one model in one format: each engine in a process of its own, both loaded, taking turns.

mlx-lm judges MLXR's answers, on a folder with the same numbers: its logits must allow each token after the tokens
before it. A row with a wrong answer is not reported. llama.cpp's own programs, if there are any, time the same work on
a GGUF file of the same numbers, between the engines' turns: see `peers.beside_llama`.

Prompts are random tokens. Both engines get the same prompts, and no length comes twice unless a row says so: not in
different rows, and not in judging, which only repeats prompts that were given.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TextIO

from peers.beside_llama import Beside, Programs
from peers.worker import EngineError, Streamed, Worker, random_tokens

from gpu.model_files import ModelFiles
from gpu.results import Results
from gpu.say import say
from gpu.user_rows import UserRow
from mlxr.bench.lengths import LengthRange, UnseenLengths
from mlxr.compiler.debug import debug_level

ENGINES = ("mlxr", "mlx-lm")
GAP = 1.0
"""How far a token's logit may be below the largest, in standard deviations of the logits: bf16 rounds all layers of
both engines. A token that has nothing to do with the logits is about 4 below."""
_MODULES = {"mlxr": "peers.user_mlxr", "mlx-lm": "peers.user_mlx_lm"}
_AFTER_FIRST = 7
"""Tokens that follow the first token of each prompt: users read on, so engines may run ahead."""
_JUDGED = 3
_CPUS = os.cpu_count() or 1


class WrongAnswerError(Exception):
    """An answer has a token that mlx-lm's logits do not allow: the row must not be reported."""


class UserGroup:
    """The rows of one model and format. A context manager: its workers end with it."""

    def __init__(self, rows: list[UserRow], files: ModelFiles, args: Any, results: Results, log: TextIO) -> None:
        """Loads nothing yet.

        Args:
            rows: what to measure.
            files: the model's files.
            args: the command line's.
            results: where results go.
            log: where the output of workers goes.
        """
        self._rows, self._files, self._args, self._results, self._log = rows, files, args, results, log
        self._format, self._work = rows[0].format, rows[0].work
        self._lengths = UnseenLengths(seen=[self._work.tokens])
        self._unseen: dict[LengthRange, list[int]] = {}
        self._prompts = 0
        self._workers: dict[str, Worker] = {}
        self._told: dict[str, dict[str, Any]] = {}
        self._stack = ExitStack()
        self._llama: dict[str, float] | None = None

    def __enter__(self) -> "UserGroup":
        """Nothing is loaded before `run`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all workers."""
        self._stack.close()

    def run(self) -> None:
        """Measures every row, as far as the time allows."""
        self._results.begin(self._rows[0])
        try:
            self._load()
            first = self._measure_first()
        except Exception as error:
            for row in self._rows:
                self._fail(row, error)
            return
        for row in self._rows:
            if time.time() > self._args.deadline:
                say("out of time: the same command goes on from here")
                return
            self._results.begin(row)
            start = time.perf_counter()
            try:
                result = first if row.kind == "first" else self._measure(row)
                result["seconds"] |= self._seconds_of_llama(row)
            except Exception as error:
                self._fail(row, error)
                if isinstance(error, EngineError):
                    self._give_up_after(row, error)
                    return
            else:
                self._results.add(row, {"path": "user", "types": self._told["mlxr"]["types"]} | result)
                say(f"{self._results.line(row)}   ({time.perf_counter() - start:.0f} s)")

    def _fail(self, row: UserRow, error: Exception) -> None:
        if debug_level():
            raise error
        self._results.fail(row, f"{type(error).__name__}: {error}")
        say(f"{row.id}: {type(error).__name__}: {error}")

    def _give_up_after(self, row: UserRow, error: EngineError) -> None:
        """Gives up the rows after a failure: the worker may be in any state, so they would not be comparable."""
        for later in self._rows[self._rows.index(row) + 1 :]:
            self._fail(later, error)

    def _load(self) -> None:
        """Starts all processes that the rows need, side by side; timing begins when all are loaded."""
        files, batch = self._files, self._work.batch
        sources = {
            "mlxr": ("mlxr", files.source(self._format), 1),
            "mlx-lm": ("mlx-lm", files.peer(self._format), 1),
        }
        if any(row.kind == "batch" for row in self._rows):
            sources["mlxr-batch"] = ("mlxr", files.source(self._format), batch)
        if files.judge(self._format) != files.peer(self._format):
            sources["judge"] = ("mlx-lm", files.judge(self._format), 1)
        say(f"{self._rows[0].model} {self._format}: loading")
        for name, (engine, _, _) in sources.items():
            self._workers[name] = Worker(_MODULES[engine], _CPUS, self._log)
            self._stack.callback(self._workers[name].close)

        def load(name: str) -> dict[str, Any]:
            _, source, batch = sources[name]
            host = self._args.host if name.startswith("mlxr") else None
            # MLX caches what it frees until a limit: each process gets its share of the card.
            limits = {"threads": _CPUS, "processes": len(sources)}
            return self._workers[name].ask("load", source=str(source), batch=batch, host=host, **limits)

        with ThreadPoolExecutor(len(sources)) as pool:
            self._told = dict(zip(sources, pool.map(load, sources), strict=True))

    def _ask(self, name: str, prompts: Sequence[Sequence[int]], tokens: int) -> Streamed:
        return Streamed(**self._workers[name].ask("stream", prompts=prompts, tokens=tokens))

    def _prompt(self, length: int) -> list[int]:
        """Tokens that no earlier prompt had."""
        self._prompts += 1
        return random_tokens(length, self._vocab, seed=self._prompts)

    @property
    def _vocab(self) -> int:
        return int(self._told["mlxr"]["vocab"])

    def _judge(self, asked: list[tuple[list[int], list[int]]]) -> float:
        """The largest gap of a few prompts' answers.

        Raises:
            WrongAnswerError: it is more than rounding explains.
        """
        judge = self._workers.get("judge", self._workers["mlx-lm"])
        step = max(1, len(asked) // _JUDGED)
        gaps = [judge.ask("gap", prompt=prompt, answer=answer)["gap"] for prompt, answer in asked[::step]]
        if not max(gaps) <= GAP:
            raise WrongAnswerError(
                f"a token's logit is {max(gaps):.3g} standard deviations below the largest of mlx-lm's, at most {GAP}"
            )
        return float(max(gaps))

    def _seconds_of_llama(self, row: UserRow) -> dict[str, list[float]]:
        """llama.cpp's seconds of a step or prompt, of which all rows are measured when the first is asked for."""
        if row.beside_llama is None or not self._args.llama_bench:
            return {}
        if self._llama is None:
            wanted = {work.title: work for each in self._rows if (work := each.beside_llama)}
            is_gpu = self._args.host in (None, "cuda")
            programs = Programs(self._args.llama_bench, self._args.llama_batched_bench, is_gpu, _CPUS)
            beside = Beside(self._files.gguf(self._format), programs, wanted)
            self._llama = {
                name: (wanted[name].batch or wanted[name].tokens) / figure.rate
                for name, figure in beside.measure_theirs([*wanted])
            }
            for (name, engine), why in beside.failures.items():
                say(f"{self._rows[0].model} {self._format}, {name}, {engine}: {why}")
        name = row.beside_llama.title
        return {"llama.cpp": [self._llama[name]]} if name in self._llama else {}

    def _measure_first(self) -> dict[str, Any]:
        """The first three prompts of the loaded engines, which also warm them up."""
        within, _ = self._work.ranges[0]
        return self._time_prompts(self._lengths.take(within, 3))

    def _time_prompts(self, lengths: list[int]) -> dict[str, Any]:
        """Seconds to the first token, one prompt of each length, engines in turns."""
        seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        asked = []
        for length in lengths:
            prompt = self._prompt(length)
            for engine, times in seconds.items():
                streamed = self._ask(engine, [prompt], _AFTER_FIRST)
                times.append(streamed.first_seconds)
                if engine == "mlxr":
                    asked.append((prompt, streamed.answers[0]))
        return {"seconds": seconds, "lengths": lengths, "gap": self._judge(asked)}

    def _measure(self, row: UserRow) -> dict[str, Any]:
        if row.kind == "decode":
            return self._time_tokens({engine: engine for engine in ENGINES}, 1)
        if row.kind == "batch":
            return self._time_tokens({"mlxr": "mlxr-batch", "mlx-lm": "mlx-lm"}, self._work.batch)
        assert row.within is not None, "prompts have lengths"
        if row.within not in self._unseen:
            self._unseen[row.within] = self._lengths.take(row.within, row.num_prompts)
            seconds = self._time_prompts(self._unseen[row.within])
            if row.kind == "unseen":
                return seconds
        return self._time_prompts(self._unseen[row.within])

    def _time_tokens(self, workers: dict[str, str], batch: int) -> dict[str, Any]:
        """Seconds of a step while all prompts decode, and seconds to the first tokens; a first turn warms up."""
        seconds: dict[str, list[float]] = {engine: [] for engine in workers}
        first: dict[str, list[float]] = {engine: [] for engine in workers}
        asked = []
        for turn in range(1 + self._args.turns):
            prompts = [self._prompt(self._work.tokens) for _ in range(batch)]
            for engine, name in workers.items():
                streamed = self._ask(name, prompts, self._work.decoded)
                if turn:
                    seconds[engine].append(streamed.next_seconds / self._work.decoded)
                    first[engine].append(streamed.first_seconds)
                if engine == "mlxr" and turn == self._args.turns:
                    asked = list(zip(prompts, streamed.answers, strict=True))
        return {"seconds": seconds, "first_seconds": first, "gap": self._judge(asked)}
