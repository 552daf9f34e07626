"""Times one configuration of a loaded model on the path of `mlxr run`: `Model.start`, tokens as they come.

It has three phases, each after a warm-up that lasts at least half a second, until two runs agree. First prompts one at
a time: seconds to the first token. Then, if there are several sequences, as many prompts together. Then decoding:
sequences of `start` tokens each, and `decode_tokens` steps of one token for each; as in generation, the logits decide
the next token. Where steps are launched several at a time, it is timed from the end of a launch to the end of another:
about as many steps.

Prompts are random tokens, seeded. A prompt's second token is computed too, as for a user who reads on.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from mlxr.bench.peak_memory import peak_bytes
from mlxr.bench.traffic import cache_bytes, weight_bytes
from mlxr.bench.workload import Workload
from mlxr.compiler.errors import RequestError
from mlxr.compiler.text import counted
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.model import Model

AGREEMENT = 0.05
MOST_RUNS = 10
LEAST_SECONDS = 0.5
"""Of a warm-up: clocks of cards and processors rise while they work, and runs of some milliseconds agree before."""
_MOST_SECONDS = 60.0
_WARM_UP_STEPS = 8
_INDEX = attrgetter("index")


@dataclass(frozen=True)
class BenchResult:
    """The figures. Tokens per second count the tokens of all sequences; figures of prompts are None without prompts.

    Attributes:
        prefill_tokens_per_second: median over prompts, `batch` of them at a time.
        decode_tokens_per_second: mean over all steps.
        time_to_first_token_seconds: from a prompt to its first token, with one sequence: median over prompts.
        time_to_first_token_min_seconds: time of the fastest prompt.
        time_to_first_token_max_seconds: time of the slowest prompt.
        time_to_first_token_p95_seconds: 95th percentile, interpolated.
        prompt_lengths: lengths of the prompts that were measured one at a time, in order.
        decode_step_ms: median over steps; steps that are launched together count as equally long.
        decode_step_min_ms: time of the fastest step.
        decode_step_max_ms: time of the slowest step.
        decode_cpu_ms: CPU time of the thread that runs the steps and reads their events, mean for each of them: all
            that the processor does where a GPU computes, and a thread's part of it on host cpu.
        weight_bytes_per_step: weights that a decode step reads, each once.
        read_gb_per_second: these and the cache's keys and values, divided by the time of a median step; 1 GB is 10^9
            bytes.
        peak_memory_bytes: most memory of the whole process, mapped files included.
        planned_bytes: weights and arena, as planned.
        launches_per_decode_step: kernels launched, on average.
        warm_up_runs: warm-up runs of all phases together.
        warm_up_agreed: whether in each phase two runs in a row were within 5 % of each other; if not, figures vary.
    """

    prefill_tokens_per_second: float | None
    decode_tokens_per_second: float
    time_to_first_token_seconds: float | None
    time_to_first_token_min_seconds: float | None
    time_to_first_token_max_seconds: float | None
    time_to_first_token_p95_seconds: float | None
    prompt_lengths: list[int]
    decode_step_ms: float
    decode_step_min_ms: float
    decode_step_max_ms: float
    decode_cpu_ms: float
    weight_bytes_per_step: int
    read_gb_per_second: float
    peak_memory_bytes: int
    planned_bytes: int
    launches_per_decode_step: float
    warm_up_runs: int
    warm_up_agreed: bool


class WarmUp:
    """Repeats work until two runs in a row take the same time.

    Attributes:
        runs: how many runs there were.
        agreed: whether the last two runs of each work were within AGREEMENT of each other.
    """

    def __init__(self) -> None:
        self.runs, self.agreed = 0, True

    def repeat(self, run: Callable[[], float]) -> None:
        """Runs work at least twice and for LEAST_SECONDS; then at most MOST_RUNS times in all, or about a minute.

        Args:
            run: the work; it returns its seconds.
        """
        begin, runs, before = time.perf_counter(), 1, run()
        while True:
            now, runs = run(), runs + 1
            seconds = time.perf_counter() - begin
            agrees = abs(now - before) <= AGREEMENT * min(now, before)
            before = now
            if seconds >= LEAST_SECONDS and (agrees or runs >= MOST_RUNS or seconds > _MOST_SECONDS):
                break
        self.runs += runs
        self.agreed &= agrees


@dataclass(frozen=True)
class _Prompts:
    """What was measured of prompts: their lengths, seconds to the first token, and tokens per second."""

    lengths: list[int]
    seconds: list[float]
    rates: list[float]


def measure(model: Model, works: Sequence[Workload]) -> list[BenchResult]:
    """Measures workloads that differ only in their contexts: prompts once, then decoding after each context.

    Raises:
        RequestError: one is out of range, or the artifact has too few or too short sequences for it.
        ArenaFullError: the arena has too few blocks for it.
    """
    for work in works:
        work.check()
        _check_fits(model, work)
    warm_up = WarmUp()
    prompts = _measure_prompts(_Running(model, works[0]), works[0], warm_up)
    return [_measure_decoding(model, work, prompts, warm_up) for work in works]


def _measure_prompts(running: "_Running", work: Workload, warm_up: WarmUp) -> _Prompts | None:
    if not work.prompts:
        return None
    lengths = work.draw_lengths()
    warm_up.repeat(lambda: running.first_tokens([lengths.warm_up]))
    first = [running.first_tokens([length]) for length in lengths.single]
    rates = [length / seconds for length, seconds in zip(lengths.single, first, strict=True)]
    if lengths.together:
        warm_up.repeat(lambda: running.first_tokens([lengths.warm_up] * work.batch))
        rates = [sum(some) / running.first_tokens(some) for some in lengths.together]
    return _Prompts(lengths.single, first, rates)


def _measure_decoding(model: Model, work: Workload, prompts: _Prompts | None, warm_up: WarmUp) -> BenchResult:
    running = _Running(model, work)
    warm_up.repeat(lambda: statistics.median(running.decode(min(_WARM_UP_STEPS, work.decode_tokens)).steps))
    decoded = running.decode(work.decode_tokens)
    steps = decoded.steps
    plan, target, step = model.artifact.plan, model.types.target, statistics.median(steps)
    read = weight_bytes(model.artifact, target, work.batch)
    cached = cache_bytes(model.arena.geometry, work.start + work.decode_tokens // 2, work.batch)
    memory, first = plan.programs[target].memory, prompts.seconds if prompts else None
    return BenchResult(
        prefill_tokens_per_second=statistics.median(prompts.rates) if prompts else None,
        decode_tokens_per_second=decoded.tokens / sum(steps),
        time_to_first_token_seconds=statistics.median(first) if first else None,
        time_to_first_token_min_seconds=min(first) if first else None,
        time_to_first_token_max_seconds=max(first) if first else None,
        time_to_first_token_p95_seconds=float(np.percentile(first, 95)) if first else None,
        prompt_lengths=prompts.lengths if prompts else [],
        decode_step_ms=1e3 * step,
        decode_step_min_ms=1e3 * min(steps),
        decode_step_max_ms=1e3 * max(steps),
        decode_cpu_ms=1e3 * decoded.cpu_seconds / len(steps),
        weight_bytes_per_step=read,
        read_gb_per_second=(read + cached) / step / 1e9,
        peak_memory_bytes=peak_bytes(),
        planned_bytes=memory.weights_bytes + memory.arena_bytes,
        launches_per_decode_step=decoded.launches,
        warm_up_runs=warm_up.runs,
        warm_up_agreed=warm_up.agreed,
    )


def _check_fits(model: Model, work: Workload) -> None:
    plan = model.artifact.plan
    arena = plan.arena
    needed, option = work.needs(plan.max_tokens)
    if needed > model.limit.tokens:
        raise RequestError(
            f"{option}: a sequence would have {needed} tokens, the context is {model.limit.tokens}: ask for fewer, or "
            "compile the spec with a larger model.context"
        )
    if work.batch > arena.max_sequences:
        raise RequestError(
            f"--batch is {work.batch}, but the artifact holds {counted(arena.max_sequences, 'sequence')}: compile the "
            "spec with a larger cache.max_sequences"
        )


@dataclass(frozen=True)
class _Decoded:
    """What was timed.

    Attributes:
        steps: seconds of each step, equal for steps launched together.
        cpu_seconds: of this thread, in all of them.
        tokens: of all sequences.
        launches: of a step.
    """

    steps: list[float]
    cpu_seconds: float
    tokens: int
    launches: float


class _Running:
    """A model that answers random prompts, no two of them alike."""

    def __init__(self, model: Model, work: Workload) -> None:
        self._model, self._work = model, work
        self._random = np.random.default_rng(work.seed)
        self._decoding: list[list[int]] = []

    def _prompts(self, lengths: Sequence[int]) -> list[list[int]]:
        vocab = self._model.artifact.plan.vocab_size
        return [[int(token) for token in self._random.integers(0, vocab, length)] for length in lengths]

    def first_tokens(self, lengths: Sequence[int]) -> float:
        """Seconds from giving prompts of these lengths together until each has its first token."""
        prompts, waiting = self._prompts(lengths), set(range(len(lengths)))
        start = time.perf_counter()
        generation = self._model.start(prompts, max_tokens=2, ignore_eos=True)
        for event in generation:
            waiting.discard(event.index)
            if not waiting:
                break
        seconds = time.perf_counter() - start
        generation.finish()
        return seconds

    def decode(self, steps: int) -> _Decoded:
        """Times about so many steps, from the end of a launch to the end of another.

        The prompts are the same each time and stay in the prefix cache, so that all of them begin with the same step.
        """
        work, host = self._work, self._model.host
        # A pipeline launches the next step ahead, at the start and at the end: so one more token must be left to
        # compute. Launches of several steps end before and after what is asked for, if there is room.
        most = 1 + steps + 1 + work.lead(self._model.artifact.plan.max_tokens)
        if host.most_steps > 1:
            most = max(most, min(most + 2 * host.most_steps, self._model.limit.tokens - work.start))
        if not self._decoding:
            self._decoding = self._prompts([work.start] * work.batch)
            for prompt in self._decoding:
                self._model.start([prompt], max_tokens=1).finish()
        waiting, first = set(range(work.batch)), list[Event]()
        begun, start, used = self._launched(), time.perf_counter(), time.thread_time()
        generation = self._model.start(self._decoding, max_tokens=most, ignore_eos=True)
        while waiting:
            first += (events := [*generation.next_launch()])
            waiting.difference_update(event.index for event in events)
        if any(event.finish_reason for event in first):  # nothing is left to time but what has begun with the prompts
            count, taken = _steps(first), time.perf_counter() - start
            return _Decoded([taken / count] * count, time.thread_time() - used, len(first), self._of_step(begun))
        launched, seconds = self._launched(), list[float]()
        start, used = time.perf_counter(), 0.0
        tokens, is_over = 0, False
        while len(seconds) < steps and not is_over:
            used -= time.thread_time()
            counts = Counter(map(_INDEX, generation.next_launch()))  # all events are read
            used += time.thread_time()
            now, count = time.perf_counter(), max(counts.values(), default=0)
            seconds += [(now - start) / count] * count
            tokens += counts.total()
            start, is_over = now, any(completion.finish_reason for completion in generation.completions)
        # Perhaps nothing was launched meanwhile: with what the prompts began with.
        is_none = launched == self._launched() or (is_over and host.most_steps > 1)
        launches = self._of_step(begun if is_none else launched)
        generation.close()
        return _Decoded(seconds, used, tokens, launches)

    def _launched(self) -> tuple[int, int]:
        """Launches of kernels until now, and the steps that they were."""
        return sum(self._model.host.launches.values()), self._model.core.launched_steps

    def _of_step(self, since: tuple[int, int]) -> float:
        """Launches of a step since then."""
        launches, steps = self._launched()
        return (launches - since[0]) / (steps - since[1])


def _steps(events: Sequence[Event]) -> int:
    """Of how many steps these tokens are: of those of the sequence that has most."""
    return max(Counter(event.index for event in events).values(), default=0)
