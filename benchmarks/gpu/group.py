"""Measures the rows of one model in one format, in a process of its own: all engines, taking turns.

A row is checked first; if its output is wrong it is not measured. Results are written after each row.
"""

import os
import statistics
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, TextIO

import mlx.core as mx
from peers.worker import EngineError, Worker, random_tokens

from gpu.check import Checker, check_against_peer
from gpu.limits import Limits
from gpu.ours import WARM_UP, Ours
from gpu.results import Results
from gpu.say import say
from gpu.theirs import Theirs, make_model
from gpu.weights import RandomWeights
from gpu.work import GROWTH, MODELS, Row, spec_document
from mlxr.compiler.debug import debug_level
from mlxr.runtime.hosts.select import check_host

Engine = Callable[[int], float]
"""Does so many steps, and returns the seconds of a single step."""
_MOST_STEPS = GROWTH - WARM_UP - 2
_PROMPT = 12
_CPUS = os.cpu_count() or 1


class Group:
    """The rows of one model and format."""

    def __init__(self, rows: list[Row], args: Any, results: Results, log: TextIO) -> None:
        """Makes the weights.

        Args:
            rows: what to measure, except rows of a first token.
            args: the command line's.
            results: where results go.
            log: where the output of workers goes.
        """
        self._rows, self._args, self._results, self._log = rows, args, results, log
        check_host(args.host)  # before the GPU computes anything: MLX reads its settings only once
        name, format_name = rows[0].model, rows[0].format
        self._shape = MODELS[name].shape
        say(f"{name} {format_name}: random weights")
        self._weights = RandomWeights(self._shape, format_name)
        # mlx-lm cannot read K-quants: its own format of as many bits takes their place.
        theirs = self._weights if format_name != "q4_k" else RandomWeights(self._shape, "affine4")
        self._peer = make_model(name, theirs)
        self._checker = Checker(self._weights, args.host)
        self._limits = Limits(1 << 24, 512) if name == "toy" else Limits()
        self._compared = format_name == "q4_k"  # nothing of mlx-lm's to compare with
        self._torch: Worker | None = None

    def run(self) -> None:
        """Measures every row, as far as the time allows."""
        for row in self._rows:
            if time.time() > self._args.deadline:
                say("out of time: the same command goes on from here")
                break
            self._results.begin(row)
            start = time.perf_counter()
            try:
                result = self._measure(row)
            except Exception as error:
                if debug_level():
                    raise
                self._results.fail(row, f"{type(error).__name__}: {error}")
                say(f"{row.id}: {type(error).__name__}: {error}")
            else:
                self._results.add(row, result)
                say(f"{self._results.line(row)}   ({time.perf_counter() - start:.0f} s)")
            mx.clear_cache()
        if self._torch is not None:
            self._torch.close()

    def _measure(self, row: Row) -> dict[str, Any]:
        document = spec_document(row, chunk=self._args.chunk)
        checked = self._checker.check(row, document)
        say(f"{row.id}: differs from the reference by {checked.error:.2g}, {checked.rows} rows of logits")
        ours = Ours(row, document, self._args.host, self._weights)
        theirs = Theirs(row, self._peer, self._shape)
        result: dict[str, Any] = {"error": checked.error, "planned_bytes": ours.planned_bytes}
        if not self._compared:
            prompt = random_tokens(_PROMPT, self._shape.vocab, seed=7)
            result["peer_error"] = check_against_peer(ours.logits(prompt), theirs.logits(prompt))
            say(f"{row.model} {row.format}: all layers differ from mlx-lm's by {result['peer_error']:.2g}")
            self._compared = True
        if row.kind == "prefill":
            engines: dict[str, Engine] = {"mlxr": in_turns(ours.prefill), "mlx-lm": in_turns(theirs.prefill)}
            if row.format != "bf16" and self._args.host == "cuda":
                unpacking = Ours(row, document, self._args.host, self._weights, keeps_unpacked=False)
                engines["mlxr-unpacking"] = in_turns(unpacking.prefill)
        else:
            engines = {"mlxr": ours.decode, "mlx-lm": theirs.decode}
            if row.batch == 1 and row.format == "bf16":
                paged = spec_document(row, paged=True, chunk=self._args.chunk)
                self._checker.check(row, paged)
                engines["mlxr-paged"] = Ours(row, paged, self._args.host, self._weights).decode
            if torch := self._torch_decode(row):
                engines["torch"] = torch
        result |= self._take_turns(engines, least=8 if row.kind == "decode" else 1)
        ours.close()
        theirs.close()
        return result

    def _torch_decode(self, row: Row) -> Engine | None:
        if row.format != "bf16" or not fnmatchcase(row.id, self._args.torch):
            return None
        if self._torch is None:
            self._torch = Worker("gpu.with_torch", _CPUS, self._log)
        try:
            told = self._torch.ask(
                "load",
                model=row.model,
                batch=row.batch,
                context=row.context,
                mode=self._args.torch_mode,
                threads=_CPUS,
            )
        except EngineError as error:
            say(f"torch, {row.id}: {error}")
            self._torch.close()
            self._torch = None
            return None
        worker = self._torch
        say(f"torch {told['version']}: compiled in {told['seconds']:.0f} s")

        def decode(steps: int) -> float:
            reply = worker.ask("decode", context=row.tokens, batch=row.batch, tokens=steps)
            return float(reply["seconds"]) / steps

        return decode

    def _take_turns(self, engines: dict[str, Engine], least: int) -> dict[str, Any]:
        """Rounds of one turn for each engine, and of the device's limits. A first round warms up and sets the steps."""
        steps = {}
        for name, engine in engines.items():
            engine(least)
            seconds = engine(least)
            steps[name] = max(least, min(_MOST_STEPS, int(self._args.seconds / seconds)))
        times: dict[str, list[float]] = {name: [] for name in engines}
        copies, products = [], []
        for _ in range(self._args.rounds):
            copies.append(self._limits.copy_bytes_per_second())
            products.append(self._limits.operations_per_second())
            for name, engine in engines.items():
                times[name].append(engine(steps[name]))
        return {"seconds": times, "steps": steps, "copy_bytes_per_second": copies, "operations_per_second": products}


def in_turns(work: Callable[[], float]) -> Engine:
    """Makes an engine of work that cannot be done in part: it returns the median of its times.

    It runs once untimed before: measuring the limits has emptied MLX's cache of buffers, so the first run allocates.
    """

    def turn(times: int) -> float:
        work()
        return statistics.median(work() for _ in range(times))

    return turn
