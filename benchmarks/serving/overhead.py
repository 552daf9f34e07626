"""The engine's own time in a decode step of many requests: what is neither the host's work nor sampling's NumPy."""

from peers.worker import random_tokens

from serving.bench import OURS, Bench
from serving.figures import Row

_SERVER_PAUSE = 0.08
"""Seconds for which the server collects the events of each of 64 streams."""


def measure(bench: Bench, batch: int = 64) -> None:
    """Medians over steps of a fixed batch."""
    name = f"{bench.name}, decode step of {batch} requests: "
    rows = {
        "overhead": Row(f"{name}the engine's own time", "us", "overhead", must=("<=", 300)),
        "schedule": Row(f"{name}of that, scheduling", "us", "schedule"),
        "batch": Row(f"{name}of that, the batch's arrays", "us", "batch"),
        "events": Row(f"{name}of that, messages and events", "us", "events"),
        "paused": Row(f"{name}the engine's own time, asked as the server asks", "us", "paused", must=("<=", 300)),
        "sampling": Row(f"{name}sampling", "us", "sampling"),
        "wall": Row(f"{name}the whole step by the clock on the wall", "us", "wall"),
    }
    bench.say(name.removesuffix(": "))
    with bench.workers({"mlxr": (OURS, {"batch": batch, "profile": True})}) as workers:
        for worker in workers.values():
            for number in range(bench.rounds + 1):
                seeds = range(70_000 + 100 * number, 70_000 + 100 * number + batch)
                prompts = [random_tokens(40 + seed % 16, bench.vocab, seed) for seed in seeds]
                medians = worker.ask("profile", prompts=prompts, tokens=120, pause=0.0)
                paused = worker.ask("profile", prompts=prompts, tokens=120, pause=_SERVER_PAUSE)
                if number:
                    for series, row in rows.items():
                        figure = paused["overhead"] if series == "paused" else medians[series]
                        bench.figures.add(row, series, 1e6 * figure)
