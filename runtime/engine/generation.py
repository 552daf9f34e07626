"""Generation: prompts in, tokens out, by iteration in the caller's thread.

It adds its requests to its model's core and runs the core's steps while its own events are missing. So several
generations of one model, each iterated in turn, share the steps.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import islice

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.completion import Completion, Event
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.listeners import Inbox
from mlxr.runtime.engine.request import Request


class Generation(Iterator[Event]):
    """A running generation: an iterator that runs steps and gives tokens.

    Its sequences are freed when it ends: after the last token, by `close`, at the end of a `with` block, or when the
    last reference to it goes. Nothing that it refers to refers back to it, so leaving a loop over it is enough.

    Attributes:
        completions: the answers so far, by index.
        prefill_seconds: time of the steps during which a prompt was not yet complete.
        decode_seconds: time of all other steps.
        first_tokens: tokens that came by the steps of `prefill_seconds`: a launch may be of several steps.
    """

    def __init__(self, core: EngineCore, requests: Sequence[Request], events: Inbox) -> None:
        """See `Model.start`.

        Args:
            core: runs the steps.
            requests: one for each answer, not added to the core yet.
            events: where their listener puts what it is told.
        """
        self._core: EngineCore | None = core
        self._requests, self._events = list(requests), events
        self._begun: Iterator[Event] = iter(())  # of what was told together
        self._has_begun = self._lost_its_model = False
        self._is_reading = True  # a prompt was not complete when the newest step began
        self.completions = [request.answer.completion for request in requests]
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self.first_tokens = 0

    def finish(self) -> list[Completion]:
        """Runs to the end and returns all answers."""
        for _ in self:
            pass
        return self.completions

    def __next__(self) -> Event:
        """The next token. Iterating again continues where the last loop stopped.

        Raises:
            MlxrError: a request failed; the generation has ended.
        """
        if self._lost_its_model:
            raise RequestError("the model was closed before the answer ended: ask before its `with` block ends")
        try:
            while (event := next(self._begun, None)) is None:
                while not self._events:
                    self._step()
                news = self._events.popleft()
                if isinstance(news, BaseException):
                    raise news
                if isinstance(news, Event):
                    return news
                self._begun = iter(news)
        except BaseException:
            self.close()
            raise
        return event

    def next_launch(self) -> Iterator[Event]:
        """The next tokens up to the end of a launch, which gives those of all its steps at once; none: it has ended.

        Raises:
            MlxrError: a request failed; the generation has ended.
        """
        yield from islice(self, 1)
        while True:
            yield from self._begun
            if not self._events:
                return
            yield next(self)

    def _step(self) -> None:
        if self._core is None:
            raise StopIteration
        if not self._has_begun:
            self._has_begun = True
            for request in self._requests:
                self._core.add(request)
        if all(request.answer.is_done for request in self._requests):
            raise StopIteration
        start = time.perf_counter()
        is_reading = self._is_reading = self._is_reading and not all([c.token_ids for c in self.completions])
        if not self._core.step() and not self._events:
            self._core.wait()
        seconds = time.perf_counter() - start
        if is_reading:
            self.prefill_seconds += seconds
            self.first_tokens = sum(len(completion.token_ids) for completion in self.completions)
        else:
            self.decode_seconds += seconds

    def __enter__(self) -> "Generation":
        """Itself; leaving closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Ends the generation and frees its sequences."""
        core, self._core = self._core, None
        self._events.clear()
        self._begun = iter(())
        if core is not None and self._has_begun:
            for request in self._requests:
                core.drop(request)

    def end_with_model(self) -> None:
        """Closes the generation because its model is being closed, and drops every reference to what the model owns.

        Tokens that have not been taken yet are lost.
        """
        has_events = bool(self._events) or next(self._begun, None) is not None
        is_over = self._core is None or (all(request.answer.is_done for request in self._requests) and not has_events)
        self._lost_its_model = not is_over
        self.close()
