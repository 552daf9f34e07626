"""Many requests with Poisson arrivals: tokens per second of all of them, from the first one's coming to the last token.

Requests come faster than any engine answers them, or else the figure would be the speed of their coming.
"""

from typing import Any

import numpy as np
from peers.worker import EngineError

from mlxr.bench.lengths import LengthRange
from serving.arrivals import Answer, Arrival, Traffic, total_tokens
from serving.bench import OURS, Bench
from serving.figures import Row

_RATES = {"storyteller": 64.0, "100m": 16.0, "tinyllama": 2.0}
_GPU_RATES = {"tinyllama": 256.0, "llama-3-8b": 64.0, "toy": 64.0}
_LONGEST = {"storyteller": 700}
"""Prompts of the bundled model end before its context of 1024 does."""
_LLAMA = {"llama.cpp": {}, "llama.cpp unified": {"unified": True}, "llama.cpp no-flash": {"flash": False}}


def measure(bench: Bench, counts: tuple[int, ...] = (16, 64), variants: tuple[str, ...] = tuple(_LLAMA)) -> None:
    """Asks MLXR and its peers in turns: llama.cpp's server, or mlx-lm. Each gets a slot for every request.

    Args:
        bench: the model and its engines.
        counts: numbers of requests.
        variants: which of llama.cpp's settings take part; the best one counts.
    """
    rates = _GPU_RATES if bench.gpu_vocab else _RATES
    for count in counts:
        traffic = Traffic(count, rates[bench.files.model], LengthRange(50, _LONGEST.get(bench.files.model, 1500)))
        context = traffic.prompts.most + traffic.answers.most
        engines: dict[str, tuple[str, dict[str, Any]]] = {"mlxr": (OURS, {"batch": count, "context": context})}
        if bench.programs:
            for name in variants[:1] if bench.is_quick else variants:
                options = _LLAMA[name] | {"batch": count, "context": context}
                engines[name] = ("peers.serve_llama", options)
        if bench.gpu_vocab:
            engines["mlxr"][1]["processes"] = 2
            engines["mlx-lm"] = ("peers.serve_mlx_lm", {"batch": count, "processes": 2})
        _ask_in_turns(bench, traffic, engines, ("mlx-lm",) if bench.gpu_vocab else variants)


def _ask_in_turns(
    bench: Bench, traffic: Traffic, engines: dict[str, tuple[str, dict[str, Any]]], peers: tuple[str, ...]
) -> None:
    name = f"{bench.name}, {traffic.count} requests at {traffic.rate:g}/s"
    speed = Row(name, "tokens/s", "mlxr", peers, (">=", 1.5 if bench.gpu_vocab else 1.3))
    first = [Row(f"{name}: first token, p{percent}", "ms", "mlxr", peers) for percent in (50, 95)]
    with bench.workers(engines) as workers:
        for number in range(bench.rounds + 1):
            bench.say(f"{traffic.count} requests, round {number}")
            arrivals = traffic.arrivals(bench.vocab, number)
            for series, worker in list(workers.items()):
                few = arrivals if number else arrivals[:4]  # the first round warms up
                try:
                    answers = worker.answer(few)
                except EngineError as error:
                    bench.fail(series, error)
                    workers.pop(series).close()
                    continue
                if number:
                    seconds = max(answer.times[-1] for answer in answers)
                    bench.figures.add(speed, series, total_tokens(few) / seconds)
                    for row, percent in zip(first, (50, 95), strict=True):
                        bench.figures.add(row, series, 1e3 * first_token(few, answers, percent))


def first_token(arrivals: list[Arrival], answers: list[Answer], percent: float) -> float:
    """A percentile of the seconds from a request's coming to its first token."""
    waited = [answer.times[0] - arrival.at for arrival, answer in zip(arrivals, answers, strict=True)]
    return float(np.percentile(waited, percent))
