"""A stream that decodes, and a request that comes meanwhile: what each costs the other."""

import statistics
import time
from itertools import pairwise
from typing import NamedTuple

from peers.worker import random_tokens

from serving.arrivals import Arrival
from serving.bench import OURS, Bench, Loaded
from serving.figures import Row

_BEFORE = 30
"""Tokens that the stream has before the request comes."""
_CONTEXT = 16384
_PAUSE_SECONDS = 20.0


class Beside(NamedTuple):
    """A request that came beside a stream.

    Attributes:
        first: seconds from its coming to its first token.
        step: median seconds from one token of the stream to the next, before it came.
        delays: for each token of the stream until the request's first: the seconds that it came later than one step
            after the token before.
    """

    first: float
    step: float
    delays: list[float]


def measure(bench: Bench, long_prompt: int = 10_000) -> None:
    """Times the first token of a prompt alone and beside a stream, and the stream's tokens meanwhile.

    Args:
        bench: the model.
        long_prompt: tokens of the long prompt, for which the model is compiled with a longer context; 0: none.
    """
    _first_token(bench, 512)
    if long_prompt:
        _delays(bench, long_prompt)


def _first_token(bench: Bench, length: int) -> None:
    name = f"{bench.name}, {length} tokens beside a stream: first token"
    first = Row(name, "ms", "beside", ("alone",), ("<=", 1.3))
    bench.say(name)
    with bench.workers({"mlxr": (OURS, {"batch": 4})}) as workers:
        for worker in workers.values():
            for number in range(3 * bench.rounds + 1):
                alone = _alone(bench, worker, length, number)
                beside = _beside(bench, worker, length, number, alone)
                if number:  # the first round warms up
                    bench.figures.add(first, "alone", 1e3 * alone)
                    bench.figures.add(first, "beside", 1e3 * beside.first)


def _delays(bench: Bench, length: int) -> None:
    name = f"{bench.name}, a stream beside {length:,} tokens"
    longest = Row(f"{name}: longest delay of a token over its step", "ms", "delay", ("step",), ("<=", 2.0))
    most = Row(f"{name}: 99 of 100 delays are below", "ms", "delay", ("step",), ("<=", 2.0))
    usual = Row(f"{name}: median delay", "ms", "delay", ("step",))
    pause = Row(f"{name}: longest pause of the idle machine", "ms", "pause", ("step",))
    first = Row(f"{name}: first token after these", "ms", "beside", ("alone",))
    bench.say(name)
    with bench.workers({"mlxr": (OURS, {"batch": 4, "context": _CONTEXT})}) as workers:
        for worker in workers.values():
            for number in range(bench.rounds + 1):
                alone = _alone(bench, worker, length, 100 + number)
                if not number:
                    bench.figures.add(pause, "pause", 1e3 * longest_pause(min(_PAUSE_SECONDS, 5 * alone)))
                beside = _beside(bench, worker, length, 100 + number, alone)
                if number:
                    delays = sorted(beside.delays)
                    bench.figures.add(pause, "step", 1e3 * beside.step)
                    for row, share in ((longest, 1.0), (most, 0.99), (usual, 0.5)):
                        bench.figures.add(row, "step", 1e3 * beside.step)
                        bench.figures.add(row, "delay", 1e3 * delays[int(share * (len(delays) - 1))])
                    bench.figures.add(first, "alone", 1e3 * alone)
                    bench.figures.add(first, "beside", 1e3 * beside.first)


def longest_pause(seconds: float) -> float:
    """The longest time that a thread which only reads the clock gets no CPU, within so many seconds."""
    longest, now = 0.0, time.perf_counter()
    end = now + seconds
    while now < end:
        before, now = now, time.perf_counter()
        longest = max(longest, now - before)
    return longest


def _alone(bench: Bench, worker: Loaded, length: int, number: int) -> float:
    prompt = random_tokens(length, bench.vocab, 20_000 + number)
    return worker.answer([Arrival(0.0, prompt, 2)])[0].times[0]


def _beside(bench: Bench, worker: Loaded, length: int, number: int, alone: float) -> Beside:
    """Sends a request when a stream has `_BEFORE` tokens, which a first stream has shown the time of.

    Args:
        bench: the model.
        worker: the engine.
        length: tokens of the request's prompt.
        number: of the round; prompts of different rounds differ.
        alone: the seconds that such a prompt takes alone.
    """
    trial = random_tokens(64, bench.vocab, 30_000 + number)
    times = worker.answer([Arrival(0.0, trial, _BEFORE)])[0].times
    step = (times[-1] - times[0]) / (_BEFORE - 1)
    # The stream must outlast the prompt; steps with a part of the prompt are longer than those without.
    context = _CONTEXT if length > bench.context else bench.context
    tokens = min(3 * _BEFORE + int(2 * alone / step), context - 64)
    stream = Arrival(0.0, random_tokens(64, bench.vocab, 40_000 + number), tokens)
    request = Arrival(times[-1], random_tokens(length, bench.vocab, 50_000 + number), 2)
    streamed, answered = worker.answer([stream, request])
    return beside(streamed.times, request.at, answered.times[0])


def beside(stream: list[float], came: float, first: float) -> Beside:
    """What a request and a stream cost each other.

    Args:
        stream: when its tokens came.
        came: when the request came.
        first: when the request's first token came.

    Raises:
        ValueError: the stream ended before the request had its first token, or had no tokens before it came.
    """
    gaps = list(pairwise(stream))
    before = [b - a for a, b in gaps if b < came]
    meanwhile = [b - a for a, b in gaps if b >= came and a < first]
    if not before or stream[-1] < first:
        raise ValueError("the stream and the prompt did not overlap")
    step = statistics.median(before)
    return Beside(first - came, step, [max(0.0, gap - step) for gap in meanwhile])
