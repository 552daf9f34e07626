"""What all measurements share: options, the model's files, workers, figures."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from peers.models import SHAPES, Files
from peers.worker import EngineError, Worker

from serving.arrivals import Answer, Arrival
from serving.figures import Figures

OURS = "peers.serve_mlxr"
SERVER = "peers.http_server"
GENERATION = "peers.user_mlxr"
_STORYTELLER_VOCAB, _STORYTELLER_CONTEXT = 4096, 1024


@dataclass
class Bench:
    """One run of the benchmark on one model.

    Attributes:
        files: the model.
        threads: of each engine.
        rounds: how often each engine takes its turn.
        is_quick: whether what takes long is cut short.
        figures: where results go.
        log: an open file for what engines print.
        base: the folder with the files of the commit to compare with, if there is one.
        programs: the folder of llama.cpp's programs, if there is one.
        gpu_vocab: token ids of a model that runs on a GPU, where mlx-lm is the peer; 0: it runs on the CPU.
    """

    files: Files
    threads: int
    rounds: int
    is_quick: bool
    figures: Figures
    log: TextIO
    base: Path | None
    programs: Path | None
    gpu_vocab: int = 0

    @property
    def name(self) -> str:
        """The model and its format."""
        return f"{self.files.model} {self.files.format}"

    def say(self, what: str) -> None:
        """Tells what is being measured."""
        print(f"{self.name}: {what.removeprefix(self.name).lstrip(', ')}", file=sys.stderr, flush=True)

    @contextmanager
    def workers(self, engines: dict[str, tuple[str, dict[str, Any]]]) -> Iterator[dict[str, "Loaded"]]:
        """Starts engines, each in its process with the model loaded. One that cannot load is left out, and noted.

        Args:
            engines: module and options of each, by the series' name.
        """
        loaded: dict[str, Loaded] = {}
        try:
            for series, (module, options) in engines.items():
                try:
                    loaded[series] = Loaded(self, module, options)
                except EngineError as error:
                    self.fail(series, error)
                else:
                    self.figures.versions[series] = loaded[series].version
            yield loaded
        finally:
            for worker in loaded.values():
                worker.close()

    @property
    def vocab(self) -> int:
        """Token ids of the model."""
        shape = SHAPES.get(self.files.model)
        return self.gpu_vocab or (shape.vocab if shape else _STORYTELLER_VOCAB)

    @property
    def context(self) -> int:
        """The model's own context."""
        shape = SHAPES.get(self.files.model)
        return shape.context if shape else _STORYTELLER_CONTEXT

    def fail(self, series: str, error: EngineError) -> None:
        """Notes that an engine could not do what it was asked."""
        self.log.seek(0)
        last_line = self.log.read().strip().splitlines()[-1:]
        text = "; ".join([str(error), *last_line])
        self.figures.failures.append(f"{self.name}, {series}: {text}")
        self.say(f"{series} is left out: {text}")

    def base_sources(self) -> str:
        """The folder of the base commit's package."""
        assert self.base is not None, "there is a base"
        return str(self.base / "src")


class Loaded:
    """A worker whose model is loaded."""

    def __init__(self, bench: Bench, module: str, options: dict[str, Any]) -> None:
        """Starts it; `options["path"]` is a folder whose packages come first.

        Raises:
            EngineError: it cannot load the model.
        """
        self._worker = Worker(module, bench.threads, bench.log, options.get("path", ""))
        details: dict[str, Any] = {
            "source": str(bench.files.source),
            "folder": str(bench.files.folder),
            "format": bench.files.format,
            "threads": bench.threads,
            "programs": str(bench.programs),
        }
        try:
            self.version: str = self._worker.ask("load", **(details | options))["version"]
        except EngineError:
            self._worker.close()
            raise

    def answer(self, arrivals: list[Arrival]) -> list[Answer]:
        """Gives requests when they are due, and waits for all answers."""
        wire = [(arrival.at, list(arrival.prompt), arrival.tokens) for arrival in arrivals]
        times = self._worker.ask("answer", arrivals=wire)["times"]
        return [Answer(of_answer, arrival.tokens) for arrival, of_answer in zip(arrivals, times, strict=True)]

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Asks for what only this engine knows."""
        return self._worker.ask(do, **details)

    def close(self) -> None:
        """Ends the process."""
        self._worker.close()
