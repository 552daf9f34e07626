"""From a `ChatJob` to the pieces of its answers: what every API calls."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.engine.errors import ConstraintError
from mlxr.server.chat.answer_parser import joined
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import Delta


class Answerer(Protocol):
    """A model that answers: a `ServedModel`."""

    @property
    def engine(self) -> EngineThread:
        """Generates."""

    @property
    def format(self) -> ChatFormat:
        """How it is spoken to."""


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """One event of an answer, and what it means.

    Attributes:
        index: which answer, from 0 to n - 1.
        deltas: what becomes certain with the event, perhaps nothing.
        event: the engine's; the last one of each answer has the finish reason and the completion.
        has_tool_calls: whether the answer has called a tool so far: then it ends for the reason `tool_calls`.
    """

    index: int
    deltas: list[Delta]
    event: Event
    has_tool_calls: bool


async def answer(
    model: Answerer,
    job: ChatJob,
    *,
    prompt: Sequence[int] | None = None,
    priority: int = 0,
    deadline: float | None = None,
    salt: str = "",
) -> AsyncGenerator[AnswerEvent]:
    """The pieces of a job's answers, as they come. Leaving the loop cancels what is left.

    Args:
        model: answers.
        job: what is asked.
        prompt: its tokens, if the caller has asked the format for them; None: it is asked here.
        priority: as for `EngineThread.generate`, as are the others.
        deadline: seconds from now.
        salt: separates prefix caches.

    Raises:
        MlxrError: as `ChatFormat.prompt`, `ChatFormat.constrained` and `EngineThread.generate`.
    """
    prompt = await model.format.prompt(job) if prompt is None else prompt
    if job.constrains_calls or job.sampling.is_constrained:  # a grammar may be long
        sampling = await asyncio.to_thread(model.format.constrained, job, prompt)
    else:
        sampling = model.format.constrained(job, prompt)
    parsers = [model.format.parser(job, prompt) for _ in range(sampling.n)]
    events = model.engine.generate(prompt, sampling, priority=priority, deadline=deadline, salt=salt)
    async with aclosing(events):
        try:
            async for event in events:
                parser = parsers[event.index]
                deltas = parser.push(event)
                if event.finish_reason is not None:
                    deltas = joined([*deltas, *parser.finish()])
                yield AnswerEvent(event.index, deltas, event, parser.has_tool_calls)
        except ConstraintError as error:
            if sampling is not job.sampling and error.option == "grammar":
                raise RequestError(f"the tools or the form of the answer cannot be enforced: {error}") from error
            raise
