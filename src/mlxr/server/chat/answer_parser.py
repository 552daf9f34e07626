"""Turns the events of one answer into deltas: reasoning, text, tool calls."""

from collections.abc import Collection

from mlxr.runtime.engine.completion import Event
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.server.chat.answer_reader import AnswerReader, Reading, spelled
from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart


class AnswerParser:
    """Parses one answer, event by event.

    Attributes:
        has_tool_calls: whether a tool call has come.
    """

    def __init__(self, tokenizer: Tokenizer, reader: AnswerReader, reading: Reading) -> None:
        """Starts before an answer.

        Args:
            tokenizer: the model's, which knows control tokens.
            reader: gets the answer's text.
            reading: what reads from it.
        """
        self._tokenizer, self._reader, self._reading = tokenizer, reader, reading
        self._control = tokenizer.control_ids
        self.has_tool_calls = False

    def push(self, event: Event) -> list[Delta]:
        """The deltas that become certain with an event, often none."""
        text, token_id = event.text, event.token_id
        self._reader.was_cut = event.finish_reason == "length"
        if token_id in self._control and not (event.finish_reason == "stop" and token_id in self._tokenizer.eos_ids):
            text += spelled(self._tokenizer.token_text(token_id))
        if not text:
            return []
        self._reader.add(text)
        return self._advance()

    def finish(self) -> list[Delta]:
        """The deltas that are left. Call it once, when the answer has ended."""
        self._reader.ended = True
        return self._advance()

    def _advance(self) -> list[Delta]:
        next(self._reading, None)
        deltas = joined(self._reader.take_deltas())
        self.has_tool_calls = self.has_tool_calls or any(isinstance(delta, ToolStart) for delta in deltas)
        return deltas


def joined(deltas: Collection[Delta]) -> list[Delta]:
    """The same deltas, with neighbours that continue one text as one."""
    whole: list[Delta] = []
    for delta in deltas:
        last = whole[-1] if whole else None
        match delta, last:
            case (ReasoningDelta(text), ReasoningDelta(before)):
                whole[-1] = ReasoningDelta(before + text)
            case (ContentDelta(text), ContentDelta(before)):
                whole[-1] = ContentDelta(before + text)
            case (ToolArguments(index, text), ToolArguments(same, before)) if index == same:
                whole[-1] = ToolArguments(index, before + text)
            case _:
                whole.append(delta)
    return whole
