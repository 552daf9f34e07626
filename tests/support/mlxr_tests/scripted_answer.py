"""An answer with all that there can be in one, in the place of a model's: what each API makes of it."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from mlxr.runtime.engine.completion import Completion, Event
from mlxr.server.chat.answer import Piece
from mlxr.server.chat.delta import Content, Delta, Reasoning, ToolArguments, ToolStart

SCRIPT: Sequence[Sequence[Delta]] = (
    [Reasoning("Let me ")],
    [],
    [Reasoning("see.")],
    [Content("I look "), Content("it up.")],
    [ToolStart(0, "call_a", "weather")],
    [ToolArguments(0, '{"city": "Ró')],
    [ToolArguments(0, 'me"}'), ToolStart(1, "call_b", "time")],
    [ToolArguments(1, "{}")],
)


async def scripted_answer(model: Any, job: Any, **options: Any) -> AsyncGenerator[Piece]:
    """Takes the place of `mlxr.server.chat.answer.answer`."""
    completion = Completion(10, cached_tokens=4, token_ids=[1] * len(SCRIPT), finish_reason="stop")
    for number, deltas in enumerate(SCRIPT):
        last = number == len(SCRIPT) - 1
        event = Event(0, 1, "", "stop" if last else None, None, completion if last else None)
        yield Piece(0, list(deltas), event, any(isinstance(delta, ToolStart) for delta in deltas) or number > 3)
