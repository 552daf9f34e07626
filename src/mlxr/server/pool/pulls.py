"""Models that are being fetched from the hub while the server runs.

A model is fetched once, however many clients ask for it, and for as long as one of them still waits: what was fetched
stays, and whoever asks again goes on from there.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mlxr.compiler.errors import MlxrError
from mlxr.hub import HubError
from mlxr.hub.choose_files import HubFile
from mlxr.loading.pull_model import PullProgress, pull_model
from mlxr.server.errors import pull_error
from mlxr.server.pool.model_pool import ModelPool

_TELL_SECONDS = 0.1
"""How often clients are told how far a file is."""
_AT_ONCE = 4
"""Models that are fetched at a time; others wait their turn."""


@dataclass(frozen=True)
class PullStep:
    """What is being done for a model.

    Attributes:
        what: for people.
        file: the file that is fetched or checked; None: none is.
        done: how many of its bytes are.
    """

    what: str
    file: HubFile | None = None
    done: int = 0


@dataclass(eq=False)
class _Pull:
    """A model that is being fetched.

    Attributes:
        steps: what was and is done; of a file's fetch the last state.
        changed: set at the next change; another one is in its place then.
        followers: how many do.
        is_ending: whether it has seen that it was given up.
        task: fetches it.
    """

    steps: list[PullStep] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    followers: int = 0
    is_ending: bool = False
    task: "asyncio.Task[None] | None" = None
    _is_given_up: bool = False
    _giving_up: threading.Lock = field(default_factory=threading.Lock)

    def give_up(self) -> None:
        """Nobody waits for it any more: it ends with its next step, which may be seconds away."""
        with self._giving_up:
            self._is_given_up = True

    def take_up(self) -> bool:
        """Somebody waits for it again; returns whether it still goes on."""
        with self._giving_up:
            self._is_given_up = self.is_ending
        return not self.is_ending

    def ends_now(self) -> bool:
        """Asked by its thread at each step: whether it is to end."""
        with self._giving_up:
            self.is_ending = self._is_given_up
        return self.is_ending

    def add(self, step: PullStep) -> None:
        """Adds a step, or replaces the last one if that is of the same file."""
        if step.file is not None and self.steps and self.steps[-1].what == step.what:
            self.steps[-1] = step
        else:
            self.steps.append(step)
        self.changed.set()
        self.changed = asyncio.Event()


class Pulls:
    """The fetches of one server. Its event loop owns them; each runs in a thread."""

    def __init__(self, pool: ModelPool) -> None:
        """Fetches nothing yet.

        Args:
            pool: serves what was fetched.
        """
        self._pool = pool
        self._running: dict[str, _Pull] = {}
        # Threads of its own: a fetch takes minutes, and answers need the event loop's.
        self._threads = ThreadPoolExecutor(_AT_ONCE, "mlxr-pull")

    async def follow(self, name: str) -> AsyncGenerator[PullStep]:
        """Fetches a model, or joins who does, and gives its steps until it is here. To leave the loop is to give up.

        Args:
            name: ORG/REPO, with a revision or a file; it is served under this name then.

        Raises:
            ApiError: `pull_model` failed.
        """
        pull = self._running.get(name)
        if pull is None or not pull.take_up():
            before = None if pull is None else pull.task
            pull = self._running[name] = _Pull()
            pull.task = asyncio.create_task(self._run(name, pull, before))
            pull.task.add_done_callback(_noticed)
        pull.followers += 1
        task, at, told = pull.task, 0, None
        assert task is not None, "it was made with its task"
        try:
            while True:
                changed, has_ended = pull.changed, task.done()
                while at < len(pull.steps):
                    if pull.steps[at] is not told:
                        yield (told := pull.steps[at])
                    if at + 1 == len(pull.steps):
                        break
                    at += 1
                if has_ended:
                    try:
                        task.result()
                    except MlxrError as error:
                        raise pull_error(name, error) from error
                    return
                changing = asyncio.ensure_future(changed.wait())
                await asyncio.wait({task, changing}, return_when=asyncio.FIRST_COMPLETED)
                changing.cancel()
                if not task.done():
                    await asyncio.sleep(_TELL_SECONDS)
        finally:
            pull.followers -= 1
            if pull.followers == 0:
                pull.give_up()

    async def close(self) -> None:
        """Gives all of them up, and waits until they have ended."""
        pulls = list(self._running.values())
        for pull in pulls:
            pull.give_up()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(*(pull.task for pull in pulls if pull.task is not None), return_exceptions=True)

    async def _run(self, name: str, pull: _Pull, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait({before})  # it was given up, has seen that, and ends
        loop = asyncio.get_running_loop()

        def add(step: PullStep) -> None:
            if pull.ends_now():
                raise HubError(f"{name}: nobody waits for it any more; what was fetched is kept")
            loop.call_soon_threadsafe(pull.add, step)

        def hashing(path: Path, done: int, total: int) -> None:
            pass  # small files, or such whose hash is known

        progress = PullProgress(
            announce=lambda text: add(PullStep(text)),
            fetching=lambda what, file, done: add(PullStep(f"{what} {file.path}", file, done)),
            hashing=hashing,
        )
        try:
            await loop.run_in_executor(self._threads, partial(pull_model, name, progress=progress))
            self._pool.admit(name)
        finally:
            if self._running.get(name) is pull:
                del self._running[name]


def _noticed(fetch: "asyncio.Task[None]") -> None:
    """Takes the error of a fetch for which nobody waits any more."""
    if not fetch.cancelled():
        fetch.exception()
