"""The engine: a model that answers many callers at once, from a thread of its own.

The thread loads the model and runs the core's steps; nothing else touches the host. Callers are tasks of asyncio or
other threads. They put messages into an inbox. Each call has a queue, to which the thread adds its events; a task is
woken only if it waits for them. If the thread can no longer go on, every caller gets an error, and `health` says so: no
caller ever waits for an engine that is dead.
"""

import asyncio
import atexit
import threading
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mlxr.compiler.errors import RequestError
from mlxr.runtime.adapters.adapter_name import adapter_name
from mlxr.runtime.argument_types import described, whole_number
from mlxr.runtime.engine.adapter_set import LoadedAdapter
from mlxr.runtime.engine.arena_state import ArenaState, arena_state
from mlxr.runtime.engine.call import Call, CallsToWake
from mlxr.runtime.engine.completion import Completion, Event
from mlxr.runtime.engine.core_stats import CoreStats, StepRecord
from mlxr.runtime.engine.dense_modules import through
from mlxr.runtime.engine.errors import EngineError, ModelClosedError, QueueFullError
from mlxr.runtime.engine.events import Events
from mlxr.runtime.engine.make_requests import Terms
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.pool import Pooling, Vector
from mlxr.runtime.engine.prompts import Prompt
from mlxr.runtime.engine.sampling.options import Sampling

_T = TypeVar("_T")
_MOST_EMBEDDED = 256
"""Prompts that `embed` puts into the queue at a time."""
_ABANDONED_SECONDS = 5.0
"""How long `close` waits for a thread that may hang."""
_MOST_FAILURES = 3
"""Failures of the loop itself, one after another, after which the engine ends."""


class EngineThread:
    """Answers any number of requests, `max_sequences` of them in each step.

    All methods may be called from any thread. The end of a `with` block closes it.
    """

    def __init__(self, load: Callable[[], Model], *, max_waiting: int = 1024) -> None:
        """Loads the model in the engine's thread, and waits for that.

        Args:
            load: loads it.
            max_waiting: requests that may wait for a place; more are refused.

        Raises:
            MlxrError: whatever `load` raises.
        """
        self._max_waiting = whole_number("max_waiting", max_waiting)
        self._inbox: deque[Callable[[], object]] = deque()
        self._to_wake: CallsToWake = defaultdict(list)
        self._calls: set[Call] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = self._has_ended = self._is_abandoned = False
        self._failure: BaseException | None = None
        self._final_stats: CoreStats | None = None
        loaded: Future[Model] = Future()
        self._thread = threading.Thread(target=self._run, args=(load, loaded), name="mlxr-engine", daemon=True)
        self._thread.start()
        self._model = loaded.result()
        _running.add(self)

    @property
    def model(self) -> Model:
        """The model; its tokenizer, templates and plan may be used from any thread, nothing else."""
        return self._model

    async def embed(
        self,
        prompts: Iterable[Prompt],
        pooling: Pooling | None = None,
        *,
        priority: int = 0,
        salt: str = "",
        told: Callable[[Event], object] = lambda event: None,
    ) -> list[Vector]:
        """The hidden rows of prompts, pooled: [hidden], f32, for each; `finished` makes embeddings of them.

        Cancelling the task cancels them. The model must have been loaded with `changes=mlxr.Changes(output="hidden")`.

        Args:
            prompts: texts or token ids.
            pooling: `mean`, `last` or `cls`; None: what the model's own files say, else `mean`.
            priority: as for `generate`.
            salt: as for `generate`.
            told: called with the event that ends each prompt.

        Raises:
            MlxrError: as `Model.embed` and `generate`.
        """
        dense = await asyncio.to_thread(self._model.dense_modules) if pooling is None else ()
        all_prompts, pooling = _listed(prompts), pooling or self._model.default_pooling()
        vectors: list[Vector] = []
        for first in range(0, len(all_prompts), _MOST_EMBEDDED):
            call = Call(self._calls, self._to_wake, asyncio.get_running_loop())
            chunk, terms = all_prompts[first : first + _MOST_EMBEDDED], Terms(priority, salt=salt)
            try:
                await asyncio.to_thread(self._submit, call, chunk, None, terms, pooling=pooling)
                for _ in call.requests:
                    if isinstance(news := await call.next(), BaseException):
                        raise news
                    told(news)
            finally:
                self._leave(call)
            vectors += [through(dense, request.pooled) for request in call.requests]
        return vectors

    async def generate(
        self,
        prompt: Prompt,
        params: Sampling | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: str | None = None,
        adapter_scale: float | None = None,
        salt: str = "",
        pause: Callable[[], float] | None = None,
    ) -> AsyncGenerator[Event]:
        """The events of one prompt's answers, as they come. Leaving the loop, or cancelling the task, cancels them.

        Args:
            prompt: text or token ids.
            params: how tokens are chosen and when answers end; None: greedily.
            priority: requests with a smaller number come first; 1 more is worth 10 seconds of waiting.
            deadline: seconds from now after which an answer ends with the finish reason `deadline`.
            adapter: the name of a loaded LoRA adapter; None: none.
            adapter_scale: by what it is multiplied; None: what it was loaded with.
            salt: prompts share cached blocks only with prompts of the same salt.
            pause: says for how many seconds events are collected after the task got some; then it gets them one after
                the other. To wake a task costs more than an event does. The first event and the end of an answer do
                not wait. None: events come as soon as they can.

        Raises:
            TypeError: an argument of a wrong type.
            QueueFullError: too many requests wait.
            RequestError: the prompt or an option cannot be served.
            HostError: a step of the request failed.
            EngineError: the engine was closed, or has failed.
        """
        call = Call(self._calls, self._to_wake, asyncio.get_running_loop(), pause)
        terms = Terms(priority, deadline, adapter, salt, adapter_scale)
        try:
            await asyncio.to_thread(self._submit, call, [prompt], params, terms)
            remaining = len(call.requests)
            while remaining:
                event = await call.next()
                if isinstance(event, BaseException):
                    raise event
                remaining -= event.finish_reason is not None
                yield event
        finally:
            self._leave(call)

    def stream(
        self,
        prompt: Prompt,
        params: Sampling | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: str | None = None,
        adapter_scale: float | None = None,
        salt: str = "",
    ) -> "Events":
        """`generate` for threads: an ordinary iterator. Closing it, or forgetting it, cancels the request."""
        call = Call(self._calls, self._to_wake)
        self._submit(call, [prompt], params, Terms(priority, deadline, adapter, salt, adapter_scale))
        return Events(call, self._leave)

    def generate_all(
        self,
        prompts: Iterable[Prompt],
        params: Sampling | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        adapter: str | None = None,
        adapter_scale: float | None = None,
        salt: str = "",
    ) -> list[Completion]:
        """The whole answers to any number of prompts: n for each, in their order.

        Raises:
            MlxrError: as `generate`; if a request fails, the others are cancelled.
        """
        call = Call(self._calls, self._to_wake)
        self._submit(
            call, _listed(prompts), params, Terms(priority, deadline, adapter, salt, adapter_scale), bounded=False
        )
        with Events(call, self._leave) as events:
            for _ in events:
                pass
        return [request.answer.completion for request in call.requests]

    def load_adapter(self, path: str | Path, name: str | None = None, scale: float = 1.0) -> LoadedAdapter:
        """Loads a LoRA adapter while the engine runs; see `Model.load_adapter`.

        Raises:
            WeightsError: it cannot be read, is for another model, or does what is not supported.
            RequestError: the model was loaded without places for adapters, or all are in use.
            EngineError: the engine was closed, or has failed.
        """
        self._check()
        read = self._model.adapters.read(path)
        own = name or adapter_name(path)
        return self._ask(lambda model: model.adapters.put(own, path, read, scale, model.core.used_adapters()))

    def unload_adapter(self, name: str) -> None:
        """Unloads an adapter; requests that use it go on.

        Raises:
            RequestError: there is none of that name.
            EngineError: the engine was closed, or has failed.
        """
        self._ask(lambda model: model.unload_adapter(name))

    def adapters(self) -> tuple[LoadedAdapter, ...]:
        """The adapters that are loaded; none, if the model has no places for any."""
        self._check()
        adapters = self._model.running_core().adapters
        return () if adapters is None else adapters.listed

    def stats(self) -> CoreStats:
        """What the engine has done so far, and what it holds now."""
        return self._ask(lambda model: model.core.stats())

    @property
    def final_stats(self) -> CoreStats | None:
        """What it had done when it ended, also if it failed; None: it has not ended."""
        return self._final_stats

    def recent_steps(self) -> list[StepRecord]:
        """The newest steps, at most 512, the newest one last."""
        return self._ask(lambda model: model.core.recent_steps)

    def arena(self) -> ArenaState:
        """The state of each block of the KV arena, between two steps."""
        return self._ask(arena_state)

    def launch_counts(self) -> dict[str, int]:
        """How often the host has launched each kernel (on `reference`, each kind of op)."""
        return self._ask(lambda model: dict(model.host.launches))

    def save(self) -> int:
        """Writes the blocks and states that the prefix cache has to disk, so that they outlive the process.

        Returns:
            How many of them are on disk.

        Raises:
            RequestError: there is no disk tier.
            EngineError: the engine was closed, or has failed.
        """
        return self._ask(lambda model: model.core.save())

    def health(self) -> str | None:
        """None while the engine answers; else why it does not."""
        if self._failure is not None:
            return f"the engine has failed: {self._failure}"
        if self._closing:
            return "the engine is closed"
        return None if self._thread.is_alive() else "the engine's thread has ended"

    def abandon(self, error: Exception) -> None:
        """Ends all calls with an error, while the engine's thread may hang in a step that never ends.

        The process is about to end: nothing is freed or saved. Any thread may call it.

        Args:
            error: what callers are told.
        """
        self._failure = self._failure or error
        self._closing = self._is_abandoned = True
        with self._lock:
            self._has_ended = True
        while self._inbox:
            with suppress(Exception):
                self._inbox.popleft()()
        for call in list(self._calls):
            call.listen(error)
            if call.loop is not None:
                with suppress(RuntimeError):  # the loop is closed
                    call.loop.call_soon_threadsafe(_wake_all, [call])
        self._wake.set()

    def close(self) -> None:
        """Cancels all requests, ends the thread and frees the model. Callers that wait get an error."""
        self._closing = True
        self._wake.set()
        _running.discard(self)
        if self._thread is not threading.current_thread():
            self._thread.join(_ABANDONED_SECONDS if self._is_abandoned else None)

    def __enter__(self) -> "EngineThread":
        """Itself; leaving closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._model!r}: {self.health() or 'running'}>"

    # What callers' threads do.

    def _submit(
        self,
        call: Call,
        prompts: list[Prompt],
        params: Sampling | None,
        terms: Terms,
        *,
        bounded: bool = True,
        pooling: Pooling | None = None,
    ) -> None:
        """Makes a call's requests and sends them to the thread."""
        self._check()
        try:
            self._make_and_send(call, prompts, params or Sampling(), terms, bounded, pooling)
        except ModelClosedError:
            self._check()  # it says why
            raise

    def _make_and_send(
        self, call: Call, prompts: list[Prompt], params: Sampling, terms: Terms, bounded: bool, pooling: Pooling | None
    ) -> None:
        model = self._model
        core = model.running_core()
        waiting = len(core.scheduler.waiting) + len(self._inbox)
        if bounded and params.n > self._max_waiting:
            raise RequestError(
                f"n is {params.n}, and at most {self._max_waiting} requests may wait: ask for fewer answers, or make "
                "the engine with a larger max_waiting"
            )
        if bounded and waiting + params.n > self._max_waiting:
            raise QueueFullError(
                f"{waiting} requests wait already, and at most {self._max_waiting} may: try again later, or make the "
                "engine with a larger max_waiting (mlxr serve --max-waiting N)"
            )
        if bounded and waiting and core.is_memory_low:
            raise QueueFullError(
                f"{waiting} requests wait already, and this machine lacks memory for more: try again later"
            )

        call.requests = model.make_requests(prompts, params, call, terms, pooling)
        self._send(lambda: self._begin(call))

    def _leave(self, call: Call) -> None:
        """Cancels what is left of a call, even if its requests have not been sent yet."""
        call.was_left = True
        if call.num_open:  # no lock and no waking: the garbage collector may call this anywhere
            self._inbox.append(lambda: self._drop(call))

    def _send(self, message: Callable[[], object]) -> None:
        with self._lock:  # a message after the last one taken would never be answered
            if self._has_ended:
                raise EngineError(f"{self.health()}: make a new one")
            self._inbox.append(message)
        self._wake.set()

    def _ask(self, question: Callable[[Model], _T]) -> _T:
        """What a function returns that runs in the thread, between steps."""
        self._check()
        answer: Future[_T] = Future()

        def reply() -> None:
            try:
                if self._is_abandoned:
                    self._check()
                answer.set_result(question(self._model))
            except BaseException as error:
                answer.set_exception(error)

        self._send(reply)
        return answer.result()

    def _check(self) -> None:
        if (reason := self.health()) is not None:
            raise EngineError(f"{reason}: make a new one")

    # What the engine's thread does.

    def _run(self, load: Callable[[], Model], loaded: "Future[Model]") -> None:
        try:
            model = load()
        except BaseException as error:
            loaded.set_exception(error)
            return
        self._model, self._wake = model, model.core.wake
        model.core.has_callers = True
        loaded.set_result(model)
        model.host.when_lost(self.abandon)
        failures = 0
        try:
            while not self._closing:
                try:
                    self._turn(model)
                    failures = 0
                except Exception as error:
                    failures += 1
                    model.core.fail_all(error)
                    if failures == _MOST_FAILURES:
                        raise
        except BaseException as error:
            self._failure = error
        finally:
            _running.discard(self)
            self._end_all()
            with suppress(Exception):
                self._final_stats = model.core.stats()
            with suppress(Exception):
                model.close()

    def _turn(self, model: Model) -> None:
        """Takes the messages, runs a step, and wakes the tasks that wait for what it gave."""
        while self._inbox:
            self._inbox.popleft()()
        has_run = model.core.step()
        if self._to_wake:
            self._wake_tasks()
        if not has_run and not self._inbox and not self._closing:
            model.core.wait()

    def _begin(self, call: Call) -> None:
        if call.was_left:
            return
        self._calls.add(call)
        call.num_untold = len(call.requests)
        if self._is_abandoned:
            return  # it is told why
        for request in call.requests:
            self._model.core.add(request)

    def _drop(self, call: Call) -> None:
        """Ends the requests of a call whose caller has gone."""
        self._calls.discard(call)
        for request in call.requests:
            self._model.core.drop(request)

    def _wake_tasks(self) -> None:
        """Wakes the tasks that wait for events: each loop once, because that is slow."""
        calls_of = dict(self._to_wake)
        self._to_wake.clear()
        for loop, calls in calls_of.items():
            try:
                loop.call_soon_threadsafe(_wake_all, calls)
            except RuntimeError:  # the loop is closed: its callers have gone
                for call in [call for call in self._calls if call.loop is loop]:
                    self._drop(call)

    def _end_all(self) -> None:
        """Tells every caller that the engine has ended."""
        failure = self._failure
        reason = "the engine was closed before the answer ended" if failure is None else f"the engine failed: {failure}"
        with self._lock:
            self._has_ended = True
        while self._inbox:
            with suppress(Exception):
                self._inbox.popleft()()
        for call in list(self._calls):
            call.listen(EngineError(reason))
        self._wake_tasks()


def _listed(prompts: Iterable[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts is {described(prompts)}; expected a list of prompts")
    return list(prompts)


_running: set[EngineThread] = set()


@atexit.register
def _close_all() -> None:
    """Closes the engines that nobody has closed, so that what their tiers on disk are to keep is saved."""
    for engine in list(_running):
        engine.close()


def _wake_all(calls: list[Call]) -> None:
    """Runs in an event loop."""
    for call in calls:
        call.wake()
