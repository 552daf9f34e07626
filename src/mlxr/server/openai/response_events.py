"""One response of /v1/responses as it grows: the events that tell of it, and what it has become."""

import time
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as quoted
from typing import Any
from uuid import uuid4

from mlxr.runtime.engine.completion import Completion
from mlxr.server.blocks import Block, Blocks, Change
from mlxr.server.chat.answer import AnswerEvent
from mlxr.server.documents.json_form import Form
from mlxr.server.documents.named_events import event_form, event_text
from mlxr.server.documents.responses_answers import (
    Incomplete,
    InputDetails,
    Item,
    ItemStatus,
    OutputDetails,
    OutputMessage,
    OutputReasoning,
    OutputText,
    Part,
    Reasoning,
    ReasoningText,
    Response,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
    TextForm,
)
from mlxr.server.documents.responses_events import (
    CallDelta,
    CallDone,
    ItemEvent,
    NumberedEvent,
    PartEvent,
    ResponseEvent,
    TextDelta,
    TextDone,
)
from mlxr.server.errors import ApiError
from mlxr.server.openai.client_tool import ToolKit
from mlxr.server.openai.growing_call import GrowingCall
from mlxr.server.openai.responses_items import sealed_reasoning
from mlxr.server.openai.responses_request import ResponsesRequest
from mlxr.server.request_record import with_warnings

_PREFIXES = {"reasoning": "rs", "text": "msg"}
_EVENTS = {"reasoning": "reasoning_text", "text": "output_text"}
_TOO_LONG = "context_length_exceeded"
"""By this agents know that they must make the conversation shorter."""
_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class GrowingResponse:
    """A response, and its events in the order in which OpenAI's client reads them.

    Attributes:
        has_begun: whether its first events have been written.
        is_kept: whether others may go on from it.
    """

    def __init__(self, request: ResponsesRequest, kit: ToolKit) -> None:
        """Starts before the answer.

        Args:
            request: what is asked.
            kit: its tools.
        """
        self._request, self._kit = request, kit
        self._calls: dict[int, GrowingCall] = {}
        self._unique = uuid4().hex
        self._created, self._number = int(time.time()), 0
        self._blocks = Blocks()
        self._completion: Completion | None = None
        self.has_begun = self.is_kept = False

    def begin(self) -> Iterator[bytes]:
        """The first events."""
        self.has_begun = True
        for name in ("created", "in_progress"):
            yield self._event(ResponseEvent, f"response.{name}", response=self._response("in_progress"))

    def add(self, piece: AnswerEvent) -> Iterator[bytes]:
        """The events of a token; `last` follows those of the last one."""
        changes = list(self._blocks.add(piece.deltas))
        if piece.event.finish_reason is not None:
            self._completion = piece.event.completion
            changes += self._blocks.end()
        for change in changes:
            yield from self._changed(change)

    def last(self) -> bytes:
        """The event of the end."""
        return self._event(ResponseEvent, f"response.{self._status}", response=self.whole())

    def failed(self, error: ApiError) -> bytes:
        """The events of an error that ends the stream, which may not have begun, but for its headers."""
        before = b"" if self.has_begun else b"".join(self.begin())
        code = error.code if error.code == _TOO_LONG else _CODES.get(error.status, "server_error")
        told = ResponseError(code=code, message=error.message)
        return before + self._event(ResponseEvent, "response.failed", response=self._response("failed", told))

    def whole(self) -> Response:
        """The response at its end."""
        return self._response(self._status)

    @property
    def _status(self) -> ItemStatus:
        ended = self._completion
        return "in_progress" if ended is None else "completed" if ended.finish_reason == "stop" else "incomplete"

    def _changed(self, change: Change) -> Iterator[bytes]:
        block = change.block
        if change.kind == "grow":
            if (event := self._grown(block, change.text)) is not None:
                yield event
        elif change.kind == "begin":
            item = self._item(block, "in_progress", is_empty=True)
            yield self._event(ItemEvent, "response.output_item.added", output_index=block.index, item=item)
            if block.kind != "call":
                part = _part(Block(block.index, block.kind))
                yield self._event(PartEvent, "response.content_part.added", **self._place(block), part=part)
        else:
            yield from self._call_ended(block) if block.kind == "call" else self._text_ended(block)
            item = self._item(block, self._status_of(block))
            yield self._event(ItemEvent, "response.output_item.done", output_index=block.index, item=item)

    def _grown(self, block: Block, text: str) -> bytes | None:
        """The event of further text, or of further characters of a call's arguments; None: it has none."""
        if block.kind != "call":
            return _GROW[block.kind](self._next(), quoted(self._id(block)), block.index, quoted(text)).encode()
        call = self._call(block)
        more = call.grow(text)
        return None if more is None else self._call_grown(call, block, more)

    def _call_grown(self, call: GrowingCall, block: Block, text: str) -> bytes:
        write = _CALL_GROWS[call.told]
        return write(self._next(), block.index, quoted(self._id(block)), quoted(text)).encode()

    def _text_ended(self, block: Block) -> Iterator[bytes]:
        more: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
        name = f"response.{_EVENTS[block.kind]}.done"
        yield self._event(TextDone, name, **self._place(block), text=block.text, **more)
        yield self._event(PartEvent, "response.content_part.done", **self._place(block), part=_part(block))

    def _call_ended(self, block: Block) -> Iterator[bytes]:
        call = self._call(block)
        if (rest := call.rest()) is not None:
            yield self._call_grown(call, block, rest)
        if call.told:
            place = {"output_index": block.index, "item_id": self._id(block)}
            yield self._event(CallDone, f"response.{call.told}.done", **place, **call.whole())

    def _place(self, block: Block) -> dict[str, Any]:
        return {"item_id": self._id(block), "output_index": block.index, "content_index": 0}

    def _call(self, block: Block) -> GrowingCall:
        if block.index not in self._calls:
            self._calls[block.index] = GrowingCall(block, self._kit.find(block.name))
        return self._calls[block.index]

    def _id(self, block: Block) -> str:
        prefix = self._call(block).prefix if block.kind == "call" else _PREFIXES[block.kind]
        return f"{prefix}_{self._unique}{block.index}"

    def _status_of(self, block: Block) -> ItemStatus:
        is_last = block.index == len(self._blocks.all) - 1
        return "incomplete" if is_last and self._status == "incomplete" else "completed"

    def _item(self, block: Block, status: ItemStatus, *, is_empty: bool = False) -> Item:
        item_id = self._id(block)
        if block.kind == "call":
            return self._call(block).item(item_id, status, is_empty=is_empty)
        if block.kind == "text":
            said = [] if is_empty else [_text(block)]
            return OutputMessage(id=item_id, status=status, type="message", role="assistant", content=said)
        thought = [] if is_empty else [_reasoning(block)]
        item = OutputReasoning(id=item_id, status=status, type="reasoning", summary=[], content=thought)
        if self._request.wants_sealed_reasoning and not is_empty:
            item.encrypted_content = sealed_reasoning(block.text)
        return item

    def _response(self, status: ResponseStatus, error: ResponseError | None = None) -> Response:
        asked = self._request.model_dump(by_alias=True)
        text, reasoning = asked["text"] or {}, asked["reasoning"] or {}
        items = [self._item(block, self._status_of(block)) for block in self._blocks.all]
        return with_warnings(
            Response(
                id=f"resp_{self._unique}",
                object="response",
                created_at=self._created,
                status=status,
                background=False,
                error=error,
                incomplete_details=Incomplete(reason="max_output_tokens") if status == "incomplete" else None,
                instructions=asked["instructions"],
                max_output_tokens=asked["max_output_tokens"],
                metadata=asked["metadata"] or {},
                model=asked["model"],
                output=items if status != "in_progress" else [],
                parallel_tool_calls=asked["parallel_tool_calls"] is not False,
                previous_response_id=asked["previous_response_id"],
                reasoning=Reasoning(effort=reasoning.get("effort"), summary=None),
                store=self.is_kept,
                temperature=1.0 if asked["temperature"] is None else asked["temperature"],
                text=TextForm(format=text.get("format") or {"type": "text"}),
                tool_choice=asked["tool_choice"] or "auto",
                tools=asked["tools"] or [],
                top_p=1.0 if asked["top_p"] is None else asked["top_p"],
                truncation="disabled",
                usage=None if self._completion is None else _usage(self._completion, self._blocks.num_reasoning),
                user=asked["user"],
            )
        )

    def _event(self, kind: type[NumberedEvent], name: str, **fields: Any) -> bytes:
        return event_text(kind(type=name, sequence_number=self._next(), **fields))

    def _next(self) -> int:
        """The number of the next event."""
        self._number += 1
        return self._number - 1


def _text_grows(name: str, **more: Any) -> Form:
    place: dict[str, Any] = {"item_id": "", "output_index": 0, "content_index": 0}
    example = TextDelta(type=f"response.{name}.delta", sequence_number=0, **place, delta="", **more)
    return event_form(example, "sequence_number", "item_id", "output_index", "delta")


def _call_grows(name: str) -> Form:
    example = CallDelta(type=f"response.{name}.delta", sequence_number=0, output_index=0, item_id="", delta="")
    return event_form(example, "sequence_number", "output_index", "item_id", "delta")


_GROW = {"text": _text_grows(_EVENTS["text"], logprobs=[]), "reasoning": _text_grows(_EVENTS["reasoning"])}
_CALL_GROWS = {name: _call_grows(name) for name in ("function_call_arguments", "custom_tool_call_input")}


def _part(block: Block) -> Part:
    return _reasoning(block) if block.kind == "reasoning" else _text(block)


def _text(block: Block) -> OutputText:
    return OutputText(type="output_text", text=block.text, annotations=[], logprobs=[])


def _reasoning(block: Block) -> ReasoningText:
    return ReasoningText(type="reasoning_text", text=block.text)


def _usage(completion: Completion, num_reasoning: int) -> ResponseUsage:
    asked, answered = completion.prompt_tokens, len(completion.token_ids)
    return ResponseUsage(
        input_tokens=asked,
        input_tokens_details=InputDetails(cached_tokens=completion.cached_tokens, cache_write_tokens=0),
        output_tokens=answered,
        output_tokens_details=OutputDetails(reasoning_tokens=num_reasoning),
        total_tokens=asked + answered,
    )
