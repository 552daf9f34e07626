"""What an engine has done since it was loaded: samples of its counters as rates, and its newest steps.

Memory is bounded: samples that get old are merged, into ones of ten seconds at first, of more when those get many.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mlxr.compiler.spec.record import Record
from mlxr.runtime.engine.core_stats import CoreStats, StepRecord
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.engine.errors import EngineError

INTERVAL = 1.0
"""Seconds between two samples."""
_MOST_FINE = 300
"""Samples that are as they were taken."""
_MOST_MERGED = 600
_FIRST_MERGED_SECONDS = 10.0
_MOST_STEPS = 512
_RATES = ("generated_per_second", "computed_per_second")
_COUNTS = (
    "steps",
    "prompt_tokens",
    "cached_tokens",
    "restored_tokens",
    "finished",
    "preemptions",
    "failed_steps",
    "draft_tokens",
    "accepted_tokens",
)


class Sample(Record):
    """What happened since the sample before, and the state at its end.

    Attributes:
        time: seconds since 1970.
        seconds: since the sample before.
        steps: steps that ended.
        generated_per_second: tokens of answers.
        computed_per_second: tokens that steps computed, those of prompts among them.
        prompt_tokens: tokens of the prompts that were admitted.
        cached_tokens, restored_tokens: how many of these the prefix cache had; how many of those came from a tier.
        hit_rate: cached over prompt tokens; null if no prompt was admitted.
        finished, preemptions, failed_steps, draft_tokens, accepted_tokens: how many.
        running, waiting: requests that have a sequence, and that wait for one.
        blocks_free, blocks_cached, blocks_used: without content; only the prefix cache has them; in use.
        blocks_shared: blocks in use that several sequences use.
    """

    time: float
    seconds: float
    steps: int
    generated_per_second: float
    computed_per_second: float
    prompt_tokens: int
    cached_tokens: int
    restored_tokens: int
    hit_rate: float | None
    finished: int
    preemptions: int
    failed_steps: int
    draft_tokens: int
    accepted_tokens: int
    running: int
    waiting: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    blocks_shared: int


class StepView(Record):
    """The batch of a step: `time` is its end, in seconds since 1970."""

    time: float
    seconds: float
    decoding: int
    prompt_tokens: int
    drafted: int


class HistoryView(Record):
    """Samples and steps after some time, oldest first.

    Attributes:
        begun: when the model was loaded, in seconds since 1970.
        now: what to ask from the next time.
        interval: seconds between two samples; those that are old were merged.
        samples, steps: what there is.
    """

    begun: float
    now: float
    interval: float
    samples: tuple[Sample, ...]
    steps: tuple[StepView, ...]


class History:
    """Samples and steps of one engine. `add` and `since` are for one thread, such as an event loop's."""

    def __init__(self, begun: float) -> None:
        """Begins without samples, at a time in seconds since 1970 at which all counters were 0."""
        self._begun = begun
        self._fine: deque[Sample] = deque()
        self._merged: list[Sample] = []
        self._merged_seconds = _FIRST_MERGED_SECONDS
        self._steps: deque[tuple[float, StepRecord]] = deque(maxlen=_MOST_STEPS)
        self._before: tuple[float, CoreStats] = begun, CoreStats()
        self._last_step = float("-inf")

    def add(self, stats: CoreStats, steps: Sequence[StepRecord], now: float, clock: float) -> None:
        """Takes a sample.

        Args:
            stats: the engine's counters.
            steps: its newest steps.
            now: seconds since 1970.
            clock: the same moment by the clock of the steps, `time.perf_counter`.
        """
        for step in steps:
            if step.end > self._last_step:
                self._last_step = step.end
                self._steps.append((now - (clock - step.end), step))
        if now > self._before[0]:
            self._fine.append(_sample(*self._before, now, stats))
            if len(self._fine) > _MOST_FINE:
                self._keep_old(self._fine.popleft())
        self._before = now, stats

    def since(self, when: float = 0.0) -> HistoryView:
        """Samples and steps after some time, in seconds since 1970."""
        return HistoryView(
            begun=self._begun,
            now=self._before[0],
            interval=INTERVAL,
            samples=tuple(sample for sample in (*self._merged, *self._fine) if sample.time > when),
            steps=tuple(_step_view(time, step) for time, step in self._steps if time > when),
        )

    def _keep_old(self, sample: Sample) -> None:
        self._merged = _appended(self._merged, sample, self._merged_seconds)
        if len(self._merged) > _MOST_MERGED:
            self._merged_seconds *= 2
            coarser: list[Sample] = []
            for old in self._merged:
                coarser = _appended(coarser, old, self._merged_seconds)
            self._merged = coarser


async def watch(engine: EngineThread, history: History) -> None:
    """Takes samples until the engine ends, or the task is cancelled."""
    # A thread of its own: those of the event loop take requests, and an engine in a long step keeps one waiting.
    thread = ThreadPoolExecutor(1, "mlxr-watch")
    try:
        while True:
            stats, steps = await asyncio.get_running_loop().run_in_executor(
                thread, lambda: (engine.stats(), engine.recent_steps())
            )
            history.add(stats, steps, time.time(), time.perf_counter())
            await asyncio.sleep(INTERVAL)
    except EngineError:
        return
    finally:
        thread.shutdown(wait=False)


def _sample(before_time: float, before: CoreStats, now: float, stats: CoreStats) -> Sample:
    seconds = now - before_time
    prompt_tokens = stats.prompt_tokens - before.prompt_tokens
    cached_tokens = stats.cached_tokens - before.cached_tokens
    return Sample(
        time=now,
        seconds=seconds,
        steps=stats.steps - before.steps,
        generated_per_second=(stats.generated_tokens - before.generated_tokens) / seconds,
        computed_per_second=(stats.computed_tokens - before.computed_tokens) / seconds,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        restored_tokens=stats.restored_tokens - before.restored_tokens,
        hit_rate=cached_tokens / prompt_tokens if prompt_tokens else None,
        finished=stats.finished - before.finished,
        preemptions=stats.preemptions - before.preemptions,
        failed_steps=stats.failed_steps - before.failed_steps,
        draft_tokens=stats.draft_tokens - before.draft_tokens,
        accepted_tokens=stats.accepted_tokens - before.accepted_tokens,
        running=stats.running,
        waiting=stats.waiting,
        blocks_free=stats.blocks_free - stats.blocks_cached,
        blocks_cached=stats.blocks_cached,
        blocks_used=stats.blocks - stats.blocks_free,
        blocks_shared=stats.blocks_shared,
    )


def _appended(samples: list[Sample], sample: Sample, most_seconds: float) -> list[Sample]:
    """The samples with one more, which is merged with the last one where both take no longer than that."""
    if samples and samples[-1].seconds + sample.seconds <= most_seconds:
        samples[-1] = _merged(samples[-1], sample)
    else:
        samples.append(sample)
    return samples


def _merged(first: Sample, second: Sample) -> Sample:
    """Two samples that follow each other as one."""
    seconds = first.seconds + second.seconds
    sums = {name: getattr(first, name) + getattr(second, name) for name in _COUNTS}
    rates = {
        name: (getattr(first, name) * first.seconds + getattr(second, name) * second.seconds) / seconds
        for name in _RATES
    }
    hit_rate = sums["cached_tokens"] / sums["prompt_tokens"] if sums["prompt_tokens"] else None
    return second.model_copy(update={"seconds": seconds, "hit_rate": hit_rate, **sums, **rates})


def _step_view(time_: float, step: StepRecord) -> StepView:
    return StepView(
        time=time_,
        seconds=step.seconds,
        decoding=step.decoding,
        prompt_tokens=step.prompt_tokens,
        drafted=step.drafted,
    )
