"""Prompts that begin alike: the time to the first token of a second request, and of one after the process's restart."""

import tempfile
from typing import Any

from peers.worker import random_tokens

from serving.arrivals import Arrival
from serving.bench import OURS, Bench, Loaded
from serving.figures import Row

_COMMON, _OWN = 1000, 8
_DISK_BYTES = 2**31


def measure(bench: Bench) -> None:
    """Gives each of some prompts of 1,000 tokens three times, each time with 8 other tokens after them.

    The process ends before the third time; the engine's folder on disk stays.
    """
    common = _COMMON if bench.files.model != "storyteller" else 900
    name = f"{bench.name}, the same {common} tokens in front"
    again = Row(f"{name}: first token", "ms", "again", ("first",), ("<=", 0.08))
    restored = Row(f"{name}, after a restart: first token", "ms", "restored", ("first",), ("<=", 0.10))
    count = max(5, bench.rounds)
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"batch": 4, "disk_folder": folder, "disk_bytes": _DISK_BYTES}
        bench.say(name)
        with bench.workers({"mlxr": (OURS, options)}) as workers:
            for worker in workers.values():
                _first_token(bench, worker, common, 999, 0)
                _first_token(bench, worker, common, 999, 1)
                for number in range(count):
                    for series, tail in (("first", 0), ("again", 1)):
                        seconds = _first_token(bench, worker, common, number, tail)
                        for row in (again, restored):
                            bench.figures.add(row, series, 1e3 * seconds)
        with bench.workers({"mlxr": (OURS, options)}) as workers:
            for worker in workers.values():
                _first_token(bench, worker, common, 998, 0)  # warms up; not on disk
                _first_token(bench, worker, common, 999, 2)
                for number in range(count):
                    bench.figures.add(restored, "restored", 1e3 * _first_token(bench, worker, common, number, 2))


def _first_token(bench: Bench, worker: Loaded, common: int, number: int, tail: int) -> float:
    """Seconds from a request to its first token."""
    prompt = random_tokens(common, bench.vocab, 5_000 + number)
    own = random_tokens(_OWN, bench.vocab, 10_000 * (1 + tail) + number)
    return worker.answer([Arrival(0.0, prompt + own, 2)])[0].times[0]
