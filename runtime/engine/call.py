"""A call of an engine: what connects its caller, in any thread or task, with the thread that runs the steps."""

import asyncio
import queue
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.request import Request

News = Event | BaseException
CallsToWake = defaultdict[asyncio.AbstractEventLoop, list["Call"]]
"""By loop: the calls whose tasks have news that they wait for."""


class Call:
    """One call of an engine: its requests, the queue that their events go to, and whether it was left.

    A thread waits at a `SimpleQueue`. A task has a deque, to which the engine's thread adds events at once; the loop is
    woken only if the task waits for them, because that costs more than all else.
    """

    __slots__ = (
        "_calls",
        "_pause",
        "_to_wake",
        "_waiter",
        "_waits",
        "_woken",
        "events",
        "events_of_task",
        "loop",
        "num_untold",
        "requests",
        "was_left",
    )

    def __init__(
        self,
        calls: "set[Call]",
        to_wake: CallsToWake,
        loop: asyncio.AbstractEventLoop | None = None,
        pause: Callable[[], float] | None = None,
    ) -> None:
        """Makes a call without requests.

        Args:
            calls: those with an end that has not been told; this one leaves it at its last end.
            to_wake: takes this call when its task waits and has news; the engine wakes the loops after each step.
            loop: the task's; None: a thread calls.
            pause: as for `EngineThread.generate`.
        """
        self._calls, self._to_wake, self._pause = calls, to_wake, pause
        self.requests: list[Request] = []
        self.loop = loop
        self.events: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.events_of_task: deque[News] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._waits = False  # whether any event wakes the task; the end of an answer does in any case
        self._woken = float("-inf")  # when the task last waited for events and got some, by its loop's clock
        self.num_untold = 0  # requests whose end has not been told
        self.was_left = False

    def listen(self, news: News) -> None:
        """Puts news where the caller takes them; runs in the engine's thread.

        A task that waits is woken after the step, once for all that the step gave it. One whose loop was closed before
        it woke is never woken: the engine finds out when it tries to.
        """
        is_end = isinstance(news, BaseException) or news.finish_reason is not None
        if self.loop is None:
            self.events.put(news)
        else:
            self.events_of_task.append(news)
            if self._waits or is_end or self.loop.is_closed():
                self._waits = False
                self._to_wake[self.loop].append(self)
        if is_end:
            self.num_untold -= 1
            if not self.num_untold:
                self._calls.discard(self)

    def __call__(self, news: News) -> None:
        """See `listen`."""
        self.listen(news)

    def tell_all(self, events: Sequence[Event]) -> None:
        """`listen` for events that end no answer."""
        if self.loop is None:
            for event in events:
                self.events.put(event)
            return
        self.events_of_task.extend(events)
        if self._waits or self.loop.is_closed():
            self._waits = False
            self._to_wake[self.loop].append(self)

    async def next(self) -> News:
        """The next event, for a task."""
        if not self.events_of_task:
            await self._more()
        return self.events_of_task.popleft()

    async def _more(self) -> None:
        """Waits for events: at least until the pause is over, unless an answer ends."""
        assert self.loop is not None, "the call of a task"
        if self._pause is not None and self.loop.time() < (soon := self._woken + self._pause()):
            waiter = self._waiter = self.loop.create_future()
            if not self.events_of_task:  # an end that came before there was a waiter would wake nobody
                timer = self.loop.call_at(soon, _wake, waiter)
                try:
                    await waiter
                finally:
                    timer.cancel()
        while not self.events_of_task:
            self._waiter = self.loop.create_future()
            self._waits = True
            if not self.events_of_task:  # what came before `_waits` was set would wake nobody
                await self._waiter
        self._waits = False
        self._woken = self.loop.time()

    def wake(self) -> None:
        """Lets the task take its events; runs in its loop."""
        if self._waiter is not None:
            _wake(self._waiter)

    @property
    def num_open(self) -> int:
        """Answers that have not ended."""
        return sum(request.answer.completion.finish_reason is None for request in self.requests)


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
