"""What the server costs over the engine alone: the same streams by `mlxr serve` and by `mlxr.Engine`, in turns."""

from typing import Any

from peers.worker import random_tokens

from serving.arrivals import Arrival
from serving.bench import OURS, SERVER, Bench
from serving.figures import Row

_PROMPT, _ANSWER = 64, 256
_MUST = {1: 0.97, 16: 0.95, 64: 0.95}
_IDLE = 1000


def measure(bench: Bench) -> None:
    """Streams that all begin at once; the figure is their tokens per second after the last one's first token."""
    for count, must in _MUST.items():
        name = f"{bench.name}, {count} streams over the engine alone"
        row = Row(name, "tokens/s", "server", ("engine",), (">=", must))
        idle = Row(f"{bench.name}, {count} streams beside {_IDLE} idle connections", "tokens/s", "idle", ("server",))
        options: dict[str, Any] = {"batch": count}
        bench.say(name)
        with bench.workers({"server": (SERVER, options | {"program": "mlxr"}), "engine": (OURS, options)}) as workers:
            for number in range(3 * bench.rounds + 1):
                for series, worker in workers.items():
                    arrivals = [
                        Arrival(0.0, random_tokens(_PROMPT, bench.vocab, 1000 * number + i), _ANSWER)
                        for i in range(count)
                    ]
                    figure = _decode_speed(worker.answer(arrivals), count)
                    if number:  # the first round warms up
                        bench.figures.add(row, series, figure)
                    if number and series == "server" and count == 1:
                        bench.figures.add(idle, "server", figure)
                        worker.ask("idle", count=_IDLE)
                        bench.figures.add(idle, "idle", _decode_speed(worker.answer(arrivals), count))
                        worker.ask("idle", count=0)


def _decode_speed(answers: list[Any], count: int) -> float:
    first = max(answer.times[0] for answer in answers)
    last = max(answer.times[-1] for answer in answers)
    left = sum(sum(time > first for time in answer.times) for answer in answers)
    share = left / sum(len(answer.times) for answer in answers)
    return count * _ANSWER * share / (last - first)
