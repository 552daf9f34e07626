"""An answer with all that there can be in one, in the place of a model's: what each API makes of it."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from mlxr.runtime.engine.completion import Completion, Event
from mlxr.server.chat.answer import AnswerEvent
from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart

SCRIPT: Sequence[Sequence[Delta]] = (
    [ReasoningDelta("Let me ")],
    [],
    [ReasoningDelta("see.")],
    [ContentDelta("I look "), ContentDelta("it up.")],
    [ToolStart(0, "call_a", "weather")],
    [ToolArguments(0, '{"city": "Ró')],
    [ToolArguments(0, 'me"}'), ToolStart(1, "call_b", "time")],
    [ToolArguments(1, "{}")],
)


def answering(script: Sequence[Sequence[Delta]]) -> Callable[..., AsyncGenerator[AnswerEvent]]:
    """What takes the place of `mlxr.server.chat.answer.answer`, and says this."""

    async def answer(model: Any, job: Any, **options: Any) -> AsyncGenerator[AnswerEvent]:
        completion = Completion(10, cached_tokens=4, token_ids=[1] * len(script), finish_reason="stop")
        has_called = False
        for number, deltas in enumerate(script):
            last = number == len(script) - 1
            event = Event(0, 1, "", "stop" if last else None, None, completion if last else None)
            has_called |= any(isinstance(delta, ToolStart) for delta in deltas)
            yield AnswerEvent(0, list(deltas), event, has_called)

    return answer


scripted_answer = answering(SCRIPT)
