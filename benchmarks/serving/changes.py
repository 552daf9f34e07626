"""What it costs that requests leave and join: decoding by a batch that changes against one that does not.

All prompts are the same, so a request that joins computes one token of its prompt and finds the rest in the prefix
cache: a step has as many tokens in both cases. Contexts are equally long on average.
"""

from collections.abc import Sequence

from peers.worker import random_tokens

from serving.arrivals import Answer, Arrival
from serving.bench import OURS, Bench
from serving.figures import Row

_PROMPT = 128
_EVERY = 4
"""Steps from one request's leaving to the next one's."""


def measure(bench: Bench, batch: int = 16, generations: int = 3) -> None:
    """Times both kinds of batch in turns.

    Args:
        bench: the model.
        batch: requests that run at once.
        generations: how often every place of the batch changes its request.
    """
    answer = batch * _EVERY
    name = f"{bench.name}, {batch} requests, one leaves and one joins every {_EVERY} steps: decode"
    row = Row(name, "tokens/s", "changing", ("fixed",), (">=", 0.97))
    bench.say(name)
    with bench.workers({"mlxr": (OURS, {"batch": batch})}) as workers:
        for worker in workers.values():
            for number in range(3 * bench.rounds + 1):
                prompt = random_tokens(_PROMPT, bench.vocab, 60_000 + number)
                fixed = [answer + 1] * batch
                first = [1 + _EVERY * (place + 1) for place in range(batch)]
                changing = first + [answer] * (generations * batch)
                worker.answer([Arrival(0.0, prompt, 2)])
                for series, lengths in (("fixed", fixed), ("changing", changing)):
                    # A millisecond between two requests keeps their order.
                    arrivals = [Arrival(1e-3 * i, prompt, length) for i, length in enumerate(lengths)]
                    speed = steady_speed(worker.answer(arrivals), batch)
                    if number:  # the first round warms up
                        bench.figures.add(row, series, speed)


def steady_speed(answers: Sequence[Answer], batch: int) -> float:
    """Tokens per second while every place of the batch is taken.

    Args:
        answers: in the order in which requests began.
        batch: requests that run at once.
    """
    begin = max(answer.times[0] for answer in answers[:batch])
    end = min(answer.times[-1] for answer in answers[-batch:])
    tokens = sum(begin < time <= end for answer in answers for time in answer.times)
    return tokens / (end - begin)
