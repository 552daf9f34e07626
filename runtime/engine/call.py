"""A call of an engine: what connects its caller, in any thread or task, with the thread that runs the steps."""

import asyncio
import queue
from collections import defaultdict, deque

from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.request import Request

News = Event | BaseException
Outbox = defaultdict[asyncio.AbstractEventLoop, list[tuple["Call", Event | BaseException]]]


class Call:
    """One call of an engine: its requests, the queue that their events go to, and whether it was left.

    A thread waits at a `SimpleQueue`. A task has a deque, which only its loop's thread changes: an `asyncio.Queue`
    costs twice as much for each token.
    """

    __slots__ = (
        "_calls",
        "_outbox",
        "events",
        "events_of_task",
        "loop",
        "num_untold",
        "requests",
        "waiter",
        "was_left",
    )

    def __init__(self, calls: "set[Call]", outbox: Outbox, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Makes a call without requests.

        Args:
            calls: those with an end that has not been told; this one leaves it at its last end.
            outbox: what the engine sends to loops.
            loop: the task's; None: a thread calls.
        """
        self._calls, self._outbox = calls, outbox
        self.requests: list[Request] = []
        self.loop = loop
        self.events: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.events_of_task: deque[News] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.num_untold = 0  # requests whose end has not been told
        self.was_left = False

    def listen(self, news: News) -> None:
        """Puts news where the caller waits; runs in the engine's thread.

        Tasks get all events of a step at once: waking a loop is slow.
        """
        if self.loop is None:
            self.events.put(news)
        else:
            self._outbox[self.loop].append((self, news))
        if isinstance(news, BaseException) or news.finish_reason:
            self.num_untold -= 1
            if not self.num_untold:
                self._calls.discard(self)

    async def next(self) -> News:
        """The next event, for a task."""
        while not self.events_of_task:
            assert self.loop is not None, "the call of a task"
            self.waiter = self.loop.create_future()
            await self.waiter
        return self.events_of_task.popleft()

    def put(self, news: News) -> None:
        """Adds an event for the task; runs in its loop."""
        self.events_of_task.append(news)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    @property
    def num_open(self) -> int:
        """Answers that have not ended."""
        return sum(request.completion.finish_reason is None for request in self.requests)
