"""A worker process: one engine, one loaded model; requests and replies are lines of JSON.

Each engine runs in a process of its own, so that thread pools and memory stay apart, and so that measurements of
several engines can take turns. A reply is an object; a failure is {"error": text}.
"""

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from mlxr.bench.peak_memory import peak_bytes

BENCHMARKS = Path(__file__).resolve().parents[1]


class Loader(ABC):
    """Loads a model: what every worker does first."""

    @abstractmethod
    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Loads a model.

        Args:
            options: `source` and `folder` (paths), `format`, `threads`, `batch` (most sequences), `context` (most
                tokens of a sequence), and options that only one engine knows.
        """

    def reply(self, what: str, details: dict[str, Any]) -> dict[str, Any]:
        """Answers a request that only this kind of engine knows."""
        raise NotImplementedError(f"{type(self).__name__} does not know {what}: {', '.join(details)}")


class Engine(Loader):
    """An engine driven step by step, whatever its users call. Times are in seconds."""

    @abstractmethod
    def prefill(self, tokens: int) -> float:
        """Time to read a prompt of so many tokens, the logits of the last included, into an empty cache."""

    @abstractmethod
    def decode(self, context: int, batch: int, tokens: int) -> tuple[float, int]:
        """The time of decode steps of `batch` sequences, each with `context` tokens in the cache, and their number.

        A slow engine may do fewer steps than asked for.
        """

    @abstractmethod
    def first_token(self) -> None:
        """Reads a prompt of 5 tokens and chooses the next one, which ends the time of a cold start."""


@dataclass(frozen=True)
class Streamed:
    """Prompts whose tokens were taken as they came.

    Attributes:
        first_seconds: from the start until each prompt had its first token.
        next_seconds: from there until each had `tokens` more.
        answers: the tokens of each prompt, in order.
    """

    first_seconds: float
    next_seconds: float
    answers: list[list[int]]


class User(Loader):
    """An engine as its users run it: with its own function that loads a model, and its own that streams an answer.

    `load` uses only `source` and `batch`, and `host` where there are several; everything else has its default.
    """

    @abstractmethod
    def stream(self, prompts: Sequence[Sequence[int]], tokens: int) -> Streamed:
        """Answers prompts together: the first token of each, then `tokens` more of each. End tokens are ignored."""

    def gap(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """How far the tokens of an answer are from the most probable ones, each after the tokens before it.

        Returns:
            The largest distance of a token's logit from the largest logit, in standard deviations of all logits.
        """
        raise NotImplementedError(f"{type(self).__name__} judges no answers")


def timed(start: float, events: Iterator[tuple[int, int]], prompts: int, tokens: int) -> Streamed:
    """Takes tokens as they come.

    Args:
        start: when the prompts were given, by `time.perf_counter`.
        events: a prompt's number and a token's id for each token.
        prompts: how many prompts there are.
        tokens: how many tokens to time after each prompt has its first.
    """
    answers: list[list[int]] = [[] for _ in range(prompts)]
    for index, token in events:
        answers[index].append(token)
        if all(answers):
            break
    first = time.perf_counter()
    for _ in range(tokens * prompts):
        index, token = next(events)
        answers[index].append(token)
    return Streamed(first - start, time.perf_counter() - first, answers)


def share_memory(processes: int) -> None:
    """Limits MLX to a share of the GPU: so many processes use it, and each would cache what it frees."""
    import mlx.core as mx

    total = int(mx.device_info().get("total_memory", 0))
    if total and processes > 1:
        mx.set_memory_limit(int(0.95 * total / processes))


def random_tokens(count: int, vocab: int, seed: int = 1) -> list[int]:
    """Seeded ids of tokens that are not special."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, vocab, count)]


def serve(engine: Loader) -> None:
    """Answers requests on standard input until it ends. What libraries print goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = _answer(engine, request)
        except Exception as error:
            if os.environ.get("MLXR_DEBUG"):
                raise
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _answer(engine: Loader, request: dict[str, Any]) -> dict[str, Any]:
    what = request.pop("do")
    if what == "load":
        limit_cpus(request["threads"])
        start = time.perf_counter()
        told = engine.load(request)
        return told | {"seconds": time.perf_counter() - start}
    if what == "memory":
        return {"peak_bytes": peak_bytes()}
    if what == "stream":
        assert isinstance(engine, User), "asked of users only"
        return asdict(engine.stream(request["prompts"], request["tokens"]))
    if what == "gap":
        assert isinstance(engine, User), "asked of users only"
        return {"gap": engine.gap(request["prompt"], request["answer"])}
    if not isinstance(engine, Engine):
        return engine.reply(what, request)
    if what == "prefill":
        return {"seconds": engine.prefill(request["tokens"]), "tokens": request["tokens"]}
    if what == "decode":
        seconds, steps = engine.decode(request["context"], request["batch"], request["tokens"])
        return {"seconds": seconds, "tokens": steps * request["batch"]}
    assert what == "first_token", f"unknown request {what}"
    engine.first_token()
    return {}


def limit_cpus(threads: int) -> None:
    """Limits this process to as many CPUs as it may have threads, for libraries that take no thread count."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


class EngineError(Exception):
    """An engine could not do what it was asked."""


class Worker:
    """The parent's end of a worker process."""

    def __init__(self, module: str, threads: int, log: TextIO, first_on_path: str = "") -> None:
        """Starts `python -m MODULE`; what the engine prints goes to `log`.

        Args:
            module: the engine.
            threads: how many it may use; libraries that read this from the environment get it there.
            log: an open file.
            first_on_path: a folder whose packages come first.
        """
        self.started = time.perf_counter()
        threads_text = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        folders = [first_on_path, str(BENCHMARKS), str(BENCHMARKS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, folders))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | threads_text | {"PYTHONPATH": path},
        )

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Sends a request and waits for the reply.

        Raises:
            EngineError: the engine failed, or its process ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do} | details) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineError(f"its process ended with code {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise EngineError(reply["error"])
        return reply

    def age(self) -> float:
        """Seconds since the process was started."""
        return time.perf_counter() - self.started

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
