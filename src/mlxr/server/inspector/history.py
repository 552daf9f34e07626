"""What an engine has done over time: samples of its counters as rates, and its newest steps. Old ones are dropped."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from mlxr.compiler.errors import EngineError
from mlxr.compiler.spec.record import Record
from mlxr.runtime.engine.core_stats import CoreStats
from mlxr.runtime.engine.engine import Engine
from mlxr.runtime.engine.step_record import StepRecord

INTERVAL = 1.0
"""Seconds between two samples."""
_MOST_SAMPLES = 600
_MOST_STEPS = 512


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
    """Samples and steps after some time, oldest first; `now` is what to ask from the next time."""

    now: float
    interval: float
    samples: tuple[Sample, ...]
    steps: tuple[StepView, ...]


class History:
    """The newest samples and steps of one engine. `add` and `since` are for one thread, such as an event loop's."""

    def __init__(self) -> None:
        """Begins without samples."""
        self._samples: deque[Sample] = deque(maxlen=_MOST_SAMPLES)
        self._steps: deque[StepView] = deque(maxlen=_MOST_STEPS)
        self._before: tuple[float, CoreStats] | None = None
        self._last_step = float("-inf")

    def add(self, stats: CoreStats, steps: Sequence[StepRecord], now: float, clock: float) -> None:
        """Takes a sample; the first one only says where counting begins.

        Args:
            stats: the engine's counters.
            steps: its newest steps.
            now: seconds since 1970.
            clock: the same moment by the clock of the steps, `time.perf_counter`.
        """
        for step in steps:
            if step.end > self._last_step:
                self._last_step = step.end
                self._steps.append(
                    StepView(
                        time=now - (clock - step.end),
                        seconds=step.seconds,
                        decoding=step.decoding,
                        prompt_tokens=step.prompt_tokens,
                        drafted=step.drafted,
                    )
                )
        if self._before is not None and now > self._before[0]:
            self._samples.append(_sample(*self._before, now, stats))
        self._before = now, stats

    def since(self, when: float = 0.0) -> HistoryView:
        """Samples and steps after some time, in seconds since 1970."""
        return HistoryView(
            now=self._before[0] if self._before else 0.0,
            interval=INTERVAL,
            samples=tuple(sample for sample in self._samples if sample.time > when),
            steps=tuple(step for step in self._steps if step.time > when),
        )


async def watch(engine: Engine, history: History) -> None:
    """Takes samples until the engine ends, or the task is cancelled."""
    while True:
        try:
            stats, steps = await asyncio.to_thread(lambda: (engine.stats(), engine.recent_steps()))
        except EngineError:
            return
        history.add(stats, steps, time.time(), time.perf_counter())
        await asyncio.sleep(INTERVAL)


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
