"""Work that MLXR and llama.cpp do on one file by the commands that users have for it, each in processes of its own.

Ours is `mlxr bench`; llama.cpp's are `llama-bench` for one sequence, of which the better kind of attention counts, and
`llama-batched-bench` for several, each of which has a prompt of its own. Rows that one process can measure share it; if
it fails, each of them gets another one, so that only those without a figure are lost.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlxr.bench.lengths import LengthRange

BENCHMARKS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class LlamaRow:
    """One row of the table.

    Attributes:
        tokens: of each prompt: those before decoding, or those that are read.
        batch: sequences that decode; 0: reading prompts is timed.
        lengths: of our prompts, if each has a length that the process has not seen; llama.cpp, which compiles nothing,
            gets `tokens`.
        prompts: how many of them.
        decoded: tokens that each sequence decodes.
    """

    tokens: int
    batch: int = 0
    lengths: LengthRange | None = None
    prompts: int = 5
    decoded: int = 128

    @property
    def title(self) -> str:
        """What is done, in words."""
        if not self.batch:
            return f"prompts of unseen lengths {self.lengths}" if self.lengths else f"prompts of {self.tokens}"
        sequences = f", {self.batch} sequences" if self.batch > 1 else ""
        return f"{self.decoded} tokens after {self.tokens}{sequences}"

    @property
    def our_process(self) -> str:
        """Rows of one sequence share a process with prompts of one kind; rows of as many sequences share one too."""
        return f"{self.batch:03}" if self.batch else f"000 {self.tokens:06} {self.lengths}"

    @property
    def their_process(self) -> str:
        """A program takes lists of prompts' lengths, or of contexts, or of numbers of sequences after one context."""
        if self.batch == 1:
            return "1 long" if self.is_long else "1"
        return f"2 {self.tokens:06}" if self.batch else "0"

    @property
    def is_long(self) -> bool:
        """Whether llama-bench needs so long for it that it is repeated once only, with one kind of attention."""
        return self.tokens > 10000


ROWS: Mapping[str, LlamaRow] = {
    "decode": LlamaRow(512, 1),
    "decode-3500": LlamaRow(3500, 1),
    "decode-32000": LlamaRow(32000, 1),
    "unseen": LlamaRow(500, lengths=LengthRange(300, 700), prompts=12),
    "prompt": LlamaRow(512),
    "unseen-2000": LlamaRow(2000, lengths=LengthRange(1950, 2050), prompts=6),
    "16": LlamaRow(512, 16),
    "16-3500": LlamaRow(3500, 16),
    "64": LlamaRow(512, 64),
}


@dataclass(frozen=True)
class Figure:
    """What one process measured of a row.

    Attributes:
        rate: tokens per second of all sequences.
        first_seconds: the median time to the first token, of a prompt.
        step_bytes: weights, keys and values that a decode step reads, each once; ours only.
        cpu_ms: CPU time of the thread for a decode step; ours only.
    """

    rate: float
    first_seconds: float | None = None
    step_bytes: int | None = None
    cpu_ms: float | None = None


@dataclass(frozen=True)
class Programs:
    """What is run, and how.

    Attributes:
        llama_bench: the program.
        llama_batched_bench: the program, for rows of several sequences.
        gpu: on an NVIDIA card.
        threads: of both engines, on a CPU.
        experts_on_cpu: layers whose experts are left to the CPU.
        repetitions: of llama-bench; after 32,000 tokens two.
        most_seconds: that a process may take.
    """

    llama_bench: str
    llama_batched_bench: str | None
    gpu: bool
    threads: int
    experts_on_cpu: int | None = None
    repetitions: int = 3
    most_seconds: float = 300.0


class FailedError(Exception):
    """A program did not measure a row; the message says why."""


@dataclass
class Beside:
    """Both engines on one file.

    Attributes:
        path: the file.
        programs: what is run.
        rows: what can be measured, by name.
        failures: why a row has no figure, by row and engine.
    """

    path: Path
    programs: Programs
    rows: Mapping[str, LlamaRow] = field(default_factory=lambda: ROWS)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def measure(self, names: Sequence[str]) -> Iterator[tuple[str, str, Figure]]:
        """One turn: row, engine and figure, as they come. Rows that failed before are left out."""
        left = [name for name in names if (name, "mlxr") not in self.failures]
        decoding = [name for name in left if self.rows[name].batch == 1]
        unseen = [name for name in left if self.rows[name].lengths]
        first = [*decoding, *unseen[:1]]
        rest = [name for name in left if name not in first]
        for group in [first, *self._groups(rest, lambda row: row.our_process)]:
            yield from ((name, "mlxr", figure) for name, figure in self._try("mlxr", self._ours, group))
        yield from ((name, "llama.cpp", figure) for name, figure in self.measure_theirs(names))

    def measure_theirs(self, names: Sequence[str]) -> Iterator[tuple[str, Figure]]:
        """One turn of llama.cpp alone."""
        left = [name for name in names if (name, "llama.cpp") not in self.failures]
        for group in self._groups(left, lambda row: row.their_process):
            yield from self._try("llama.cpp", self._theirs, group)

    def _groups(self, names: Sequence[str], process: Callable[[LlamaRow], str]) -> list[list[str]]:
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(process(self.rows[name]), []).append(name)
        return list(groups.values())

    def _try(
        self, engine: str, run: Callable[[list[str]], Mapping[str, Figure]], names: list[str]
    ) -> Iterator[tuple[str, Figure]]:
        try:
            figures = run(names) if names else {}
            yield from figures.items()
        except FailedError as error:
            if len(names) == 1:
                self.failures[names[0], engine] = str(error)
                return
            for name in names:
                yield from self._try(engine, run, [name])

    def _ours(self, names: list[str]) -> Mapping[str, Figure]:
        decoding = [name for name in names if self.rows[name].batch]
        reading = [name for name in names if not self.rows[name].batch]
        assert len(reading) <= 1, "a process reads prompts of one kind"
        command = [sys.executable, "-m", "mlxr", "bench", str(self.path), "--json"]
        if self.programs.experts_on_cpu:
            command += ["--experts-on-cpu", str(self.programs.experts_on_cpu)]
        if not self.programs.gpu:
            command += ["--host", "cpu", "--threads", str(self.programs.threads)]
        if decoding:
            row = self.rows[decoding[0]]
            command += ["--batch", str(row.batch), "--decode-tokens", str(row.decoded)]
            command += ["--context", ",".join(str(self.rows[name].tokens) for name in decoding)]
        else:
            command += ["--decode-tokens", "1"]
        if reading:
            row = self.rows[reading[0]]
            command += ["--lengths", str(row.lengths)] if row.lengths else ["--prompt-tokens", str(row.tokens)]
            command += ["--prompts", str(row.prompts)]
        else:
            command += ["--prompts", "0"]
        told = json.loads(self._output(command))
        results = told if isinstance(told, list) else [told]
        figures = {}
        for name, result in zip(decoding, results, strict=False):
            step_bytes = round(result["read_gb_per_second"] * 1e6 * result["decode_step_ms"])
            figures[name] = Figure(result["decode_tokens_per_second"], None, step_bytes, result["decode_cpu_ms"])
        for name in reading:
            first = results[0]["time_to_first_token_seconds"]
            figures[name] = Figure(results[0]["prefill_tokens_per_second"], first)
        return figures

    def _theirs(self, names: list[str]) -> Mapping[str, Figure]:
        return self._batched(names) if self.rows[names[0]].batch > 1 else self._single(names)

    def _single(self, names: list[str]) -> Mapping[str, Figure]:
        """The better of both kinds of attention, for each row; after 32,000 tokens flash attention, which is better."""
        programs, row = self.programs, self.rows[names[0]]
        options = ["-ngl", "99"] if programs.gpu else ["-ngl", "0", "-t", str(programs.threads)]
        if programs.experts_on_cpu:
            options += ["-ncmoe", str(programs.experts_on_cpu), "-t", str(programs.threads)]
        tokens = ",".join(str(self.rows[name].tokens) for name in names)
        work = ["-p", "0", "-n", str(row.decoded), "-d", tokens] if row.batch else ["-p", tokens, "-n", "0"]
        repetitions = min(2, programs.repetitions) if row.is_long else programs.repetitions
        command = [programs.llama_bench, "-m", str(self.path), "-o", "json", "-r", str(repetitions), *options, *work]
        best: dict[str, Figure] = {}
        for run in json.loads(self._output([*command, "-fa", "1" if row.is_long else "0,1"])):
            (name,) = (name for name in names if self.rows[name].tokens == (run["n_prompt"] or run["n_depth"]))
            if name not in best or run["avg_ts"] > best[name].rate:
                first = None if self.rows[name].batch else self.rows[name].tokens / run["avg_ts"]
                best[name] = Figure(run["avg_ts"], first)
        return best

    def _batched(self, names: list[str]) -> Mapping[str, Figure]:
        """The better of two runs of each number of sequences, on a GPU with flash attention."""
        programs = self.programs
        if not programs.llama_batched_bench:
            raise FailedError("rows of several sequences need --llama-batched-bench")
        row, most = self.rows[names[0]], max(self.rows[name].batch for name in names)
        each = -(-(row.tokens + row.decoded) // 256) * 256  # llama.cpp rounds a sequence's part of the context
        command = [programs.llama_batched_bench, "-m", str(self.path), "--output-format", "jsonl"]
        command += ["-c", str(most * each), "-npp", str(row.tokens), "-ntg", str(row.decoded)]
        command += ["-npl", ",".join(str(self.rows[name].batch) for name in names for _ in range(2))]
        command += ["-ngl", "99", "-fa", "on"] if programs.gpu else ["-ngl", "0", "-t", str(programs.threads)]
        if programs.experts_on_cpu:
            command += ["-ncmoe", str(programs.experts_on_cpu), "-t", str(programs.threads)]
        runs = [json.loads(line) for line in self._output(command).splitlines() if line.startswith("{")]
        rates = {name: [run["speed_tg"] for run in runs if run["pl"] == self.rows[name].batch] for name in names}
        if not all(rates.values()):
            raise FailedError("llama-batched-bench left rows out")
        return {name: Figure(max(each)) for name, each in rates.items()}

    def _output(self, command: Sequence[str]) -> str:
        return output(command, self.programs.most_seconds)


def copy_bytes_per_second() -> float:
    """The card's rate of copies, bytes read and written, measured in a process of its own."""
    path = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]))
    code = "from gpu.limits import Limits; print(Limits().copy_bytes_per_second())"
    return float(output([sys.executable, "-c", code], 120.0, os.environ | {"PYTHONPATH": path}))


def output(command: Sequence[str], most_seconds: float, environment: Mapping[str, str] | None = None) -> str:
    """What a program prints.

    Raises:
        FailedError: it failed, or took longer.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=most_seconds, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"{Path(command[0]).name} took more than {most_seconds:.0f} s") from error
    except OSError as error:
        raise FailedError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        told = (done.stderr or done.stdout)[-1500:].strip()
        raise FailedError(f"{' '.join(command)} ended with code {done.returncode}: {told}")
    return done.stdout
