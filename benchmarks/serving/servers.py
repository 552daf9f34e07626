"""`mlxr serve` beside other servers: Poisson arrivals over HTTP, the same requests to each, in turns."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from peers.models import ROOT
from peers.worker import EngineError

from mlxr.bench.lengths import LengthRange
from serving.arrivals import Answer, Arrival, Traffic, total_tokens
from serving.bench import SERVER, Bench
from serving.figures import Row

_RATES = {"storyteller": 32.0, "100m": 8.0, "tinyllama": 1.0}
_LONGEST = {"storyteller": 700}
_LOADS = (0.25, 0.5, 1.0, 2.0)
_COUNT = 16
_PERCENTS = (50, 95, 99)


def measure(bench: Bench) -> None:
    """16 requests to each server, each of which has as many places; then ours alone under several loads."""
    longest = _LONGEST.get(bench.files.model, 1500)
    traffic = Traffic(_COUNT, _RATES[bench.files.model], LengthRange(50, longest))
    options: dict[str, Any] = {"batch": _COUNT, "context": traffic.prompts.most + traffic.answers.most}
    engines = {"mlxr": (SERVER, options | {"program": "mlxr"})}
    if bench.programs:
        engines["llama.cpp"] = (SERVER, options | {"program": "llama.cpp"})
    _beside(bench, traffic, engines, "llama.cpp", 1.3)
    _under_loads(bench, traffic, options)


def beside_mlx_lm(bench: Bench) -> None:
    """16 requests to mlx-lm's server: of the bundled model, and short, because mlx is slow on CPUs.

    mlx-lm runs the bf16 weights, with which it is faster there than with 8 bits.
    """
    if bench.files.model != "storyteller":
        bench.say("only storyteller has a tokenizer for mlx-lm's server")
        return
    traffic = Traffic(_COUNT, _RATES[bench.files.model], LengthRange(100, 200), LengthRange(20, 40))
    options: dict[str, Any] = {"batch": _COUNT, "context": traffic.prompts.most + traffic.answers.most}
    options["text"] = str(ROOT / "tests/data/storyteller/valid.txt")  # that server takes no token ids
    _beside(bench, traffic, {name: (SERVER, options | {"program": name}) for name in ("mlxr", "mlx-lm")}, "mlx-lm", 3.0)


def _beside(
    bench: Bench, traffic: Traffic, engines: dict[str, tuple[str, dict[str, Any]]], peer: str, must: float
) -> None:
    name = f"{bench.name}, {traffic.count} requests at {traffic.rate:g}/s beside {peer}'s server"
    speed = Row(name, "tokens/s", "mlxr", _series(peer), (">=", must))
    bench.say(name)
    with bench.workers(engines) as workers:
        for number in range(bench.rounds + 1):
            arrivals = traffic.arrivals(bench.vocab, number)
            for series, worker in list(workers.items()):
                try:
                    answers = worker.answer(arrivals if number else arrivals[:4])
                except EngineError as error:
                    bench.fail(series, error)
                    workers.pop(series).close()
                    continue
                if number:
                    _add(bench, name, speed, series, peer, arrivals, answers)


def _add(
    bench: Bench, name: str, speed: Row, series: str, peer: str, arrivals: list[Arrival], answers: list[Answer]
) -> None:
    seconds = max(answer.times[-1] for answer in answers)
    bench.figures.add(speed, series, total_tokens(arrivals) / seconds)
    first = [answer.times[0] - arrival.at for arrival, answer in zip(arrivals, answers, strict=True)]
    between = [later - before for answer in answers for before, later in pairwise(answer.times)]
    for percent in _PERCENTS:
        must_be = Row(f"{name}: first token, p{percent}", "ms", "mlxr", _series(peer), ("<=", 1.0))
        row = must_be if peer and percent == 95 else replace(must_be, must=None)
        bench.figures.add(row, series, 1e3 * float(np.percentile(first, percent)))
    for percent in _PERCENTS:
        row = Row(f"{name}: between tokens, p{percent}", "ms", "mlxr", _series(peer))
        bench.figures.add(row, series, 1e3 * float(np.percentile(between, percent)))


def _series(peer: str) -> tuple[str, ...]:
    return (peer,) if peer else ()


def _under_loads(bench: Bench, traffic: Traffic, options: dict[str, Any]) -> None:
    bench.say("loads")
    with bench.workers({"mlxr": (SERVER, options | {"program": "mlxr"})}) as workers:
        for worker in workers.values():
            for load in _LOADS:
                own = replace(traffic, rate=load * traffic.rate, count=2 * _COUNT)
                name = f"{bench.name}, {own.count} requests at {own.rate:g}/s"
                for number in range(bench.rounds):
                    arrivals = own.arrivals(bench.vocab, 100 + number)
                    _add(bench, name, Row(name, "tokens/s", "mlxr"), "mlxr", "", arrivals, worker.answer(arrivals))
