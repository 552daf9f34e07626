"""Measures the answers of one model: whatever API they are for, they pass here."""

import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

from mlxr.runtime.engine.completion import Event, FinishReason
from mlxr.runtime.engine.core_stats import CoreStats
from mlxr.server.metrics.histogram import Histogram
from mlxr.server.request_record import RECORD

# Where vLLM's buckets end, so that dashboards compare like with like.
FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
NEXT_TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
FAST_TOKEN_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005)
"""Further ones below vLLM's: small models need less than 10 ms for a token."""
REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
REASONS = ("stop", "length", "abort", "error")
"""Why answers end, as vLLM names it."""
_REASON_OF: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "context": "length",
    "cancelled": "abort",
    "deadline": "abort",
}


class Meter:
    """Measures of one served model, since the server started.

    The event loop's thread alone may use it; only `retire` is called elsewhere, while the model is being unloaded.

    Attributes:
        loads: how often the model was loaded.
        streams: prompts that are being answered now.
        first_token: seconds from a request to an answer's first token.
        next_token: seconds between two tokens of an answer.
        request: seconds from a request to an answer's end.
        finished: answers by why they ended, see `REASONS`.
        past: what the engines did that have ended: sums of the counters of `CoreStats`.
        past_launches: launches of each kernel by these.
    """

    def __init__(self) -> None:
        """Has measured nothing yet."""
        self.loads = self.streams = 0
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.next_token = Histogram((*FAST_TOKEN_BOUNDS, *NEXT_TOKEN_BOUNDS))
        self.request = Histogram(REQUEST_BOUNDS)
        self.finished = Counter(dict.fromkeys(REASONS, 0))
        self.past: Counter[str] = Counter()
        self.past_launches: Counter[str] = Counter()

    async def observe(
        self, events: AsyncGenerator[Event], num_answers: int, prompt_tokens: int = 0
    ) -> AsyncGenerator[Event]:
        """The events of a prompt's answers, unchanged.

        Args:
            events: of the engine.
            num_answers: how many answers there are.
            prompt_tokens: of the prompt, for the record of a request that is left before an answer ends; 0: not known.
        """
        begin, record = time.perf_counter(), RECORD.get()
        last: dict[int, float] = {}  # when each answer's newest token came
        left, next_token = num_answers, self.next_token.observe
        unfinished: Counter[int] = Counter()  # tokens of each answer that has not ended
        cached = 0
        reason = "abort"  # if the loop is left before the end
        self.streams += 1
        try:
            async with aclosing(events):
                async for event in events:
                    if event.token_id is not None:
                        at, before = event.time, last.get(event.index)
                        unfinished[event.index] += 1
                        cached = event.cached_tokens
                        last[event.index] = at
                        if before is not None:
                            next_token(at - before)
                        else:
                            self.first_token.observe(at - begin)
                            if record is not None and record.first_token is None:
                                record.first_token = at - record.begin
                    if event.finish_reason is not None:
                        self.request.observe(time.perf_counter() - begin)
                        self.finished[_REASON_OF[event.finish_reason]] += 1
                        if record is not None and event.completion is not None:
                            record.add(event.completion, is_first=left == num_answers, ended=event.time)
                        left -= 1
                        del unfinished[event.index]
                    yield event
        except Exception:
            reason = "error"
            raise
        finally:
            self.streams -= 1
            if left:
                self.finished[reason] += left
                if record is not None:
                    record.add_unfinished(unfinished.total(), prompt_tokens, cached, is_first=left == num_answers)

    def retire(self, stats: CoreStats) -> None:
        """Keeps what an engine has counted, which has ended: counters never go back."""
        counters = {name: int(getattr(stats, name)) for name in COUNTERS}
        if stats.tiers is not None:
            counters |= {name: int(stats.tiers[name]) for name in TIER_COUNTERS}
        self.past.update(counters)
        self.past_launches.update(stats.launches)


COUNTERS = (
    *("steps", "failed_steps", "prompt_tokens", "cached_tokens", "restored_tokens", "computed_tokens"),
    *("generated_tokens", "forced_tokens", "preemptions", "draft_tokens", "accepted_tokens"),
)
"""Fields of `CoreStats` that count up."""
TIER_COUNTERS = ("memory_hits", "disk_hits", "written_blocks", "dropped_blocks", "damaged_blocks")
"""Fields of the tiers' stats that count up."""
