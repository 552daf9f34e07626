"""One request: the engine against `Generation`, today's and that of an older commit."""

from typing import Any

from peers.worker import random_tokens

from serving.arrivals import Arrival
from serving.bench import GENERATION, OURS, Bench
from serving.figures import Row

_PROMPT, _ANSWER = 256, 129


def measure(bench: Bench) -> None:
    """Decoding after a prompt, and the time to its first token, in turns; once for each kind of arena."""
    for batch, arena in ((1, "contiguous"), (16, "paged")):
        engines: dict[str, tuple[str, dict[str, Any]]] = {"mlxr": (OURS, {"batch": batch})}
        engines["Generation"] = (GENERATION, {"batch": batch})
        if bench.base:
            engines["base"] = (GENERATION, {"batch": batch, "path": bench.base_sources()})
        against = ("base",) if bench.base else ("Generation",)
        name = f"{bench.name}, one request, {arena} arena"
        speed = Row(f"{name}: decode", "tokens/s", "mlxr", against, (">=", 0.98))
        first = Row(f"{name}: first token", "ms", "mlxr", against)
        own = Row(f"{name}: decode by Generation", "tokens/s", "Generation", against, (">=", 0.98))
        with bench.workers(engines) as workers:
            bench.say(f"one request, {arena} arena")
            for number in range(3 * bench.rounds + 1):
                prompt = random_tokens(_PROMPT, bench.vocab, 77_000 + number)
                for series, worker in workers.items():
                    if series == "mlxr":
                        times = worker.answer([Arrival(0.0, prompt, _ANSWER)])[0].times
                        first_seconds, seconds = times[0], times[-1] - times[0]
                    else:
                        reply = worker.ask("stream", prompts=[prompt], tokens=_ANSWER - 1)
                        first_seconds, seconds = reply["first_seconds"], reply["next_seconds"]
                    if number:  # the first round warms up
                        bench.figures.add(speed, series, (_ANSWER - 1) / seconds)
                        bench.figures.add(own, series, (_ANSWER - 1) / seconds)
                        bench.figures.add(first, series, 1e3 * first_seconds)
