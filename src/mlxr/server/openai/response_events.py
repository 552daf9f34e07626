"""One response of /v1/responses as it grows: the events that tell of it, and what it has become."""

import time
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

from mlxr.runtime.engine.completion import Completion
from mlxr.server.blocks import Block, Blocks, Change
from mlxr.server.chat.answer import Piece
from mlxr.server.documents.json_form import dumped
from mlxr.server.errors import ApiError
from mlxr.server.openai.client_tool import ToolKit
from mlxr.server.openai.growing_call import GrowingCall
from mlxr.server.openai.responses_items import sealed_reasoning
from mlxr.server.openai.responses_request import ResponsesRequest
from mlxr.server.request_record import noted_warnings

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
            yield self._event(f"response.{name}", response=self._response("in_progress"))

    def add(self, piece: Piece) -> Iterator[bytes]:
        """The events of a token; `last` follows those of the last one."""
        changes = list(self._blocks.add(piece.deltas))
        if piece.event.finish_reason is not None:
            self._completion = piece.event.completion
            changes += self._blocks.end()
        for change in changes:
            yield from self._changed(change)

    def last(self) -> bytes:
        """The event of the end."""
        return self._event(f"response.{self._status}", response=self.whole())

    def failed(self, error: ApiError) -> bytes:
        """The events of an error that ends the stream, which may not have begun, but for its headers."""
        before = b"" if self.has_begun else b"".join(self.begin())
        code = error.code if error.code == _TOO_LONG else _CODES.get(error.status, "server_error")
        told = {"code": code, "message": error.message}
        return before + self._event("response.failed", response=self._response("failed", told))

    def whole(self) -> dict[str, Any]:
        """The response at its end."""
        return self._response(self._status)

    @property
    def _status(self) -> str:
        ended = self._completion
        return "in_progress" if ended is None else "completed" if ended.finish_reason == "stop" else "incomplete"

    def _changed(self, change: Change) -> Iterator[bytes]:
        block = change.block
        place: dict[str, Any] = {"output_index": block.index}
        if change.kind == "begin":
            item = self._item(block, "in_progress", is_empty=True)
            yield self._event("response.output_item.added", **place, item=item)
        if block.kind == "call":
            call, place["item_id"] = self._call(block), self._id(block)
            events = {"begin": (), "grow": call.grow(change.text), "end": call.end()}[change.kind]
            for name, fields in events:
                yield self._event(f"response.{name}", **place, **fields)
        else:
            yield from self._text_changed(change)
        if change.kind == "end":
            item = self._item(block, self._status_of(block))
            yield self._event("response.output_item.done", output_index=block.index, item=item)

    def _text_changed(self, change: Change) -> Iterator[bytes]:
        block = change.block
        part = {"item_id": self._id(block), "output_index": block.index, "content_index": 0}
        more: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
        name = f"response.{_EVENTS[block.kind]}"
        match change.kind:
            case "begin":
                empty = Block(block.index, block.kind)
                yield self._event("response.content_part.added", **part, part=_part(empty))
            case "grow":
                yield self._event(f"{name}.delta", **part, delta=change.text, **more)
            case "end":
                yield self._event(f"{name}.done", **part, text=block.text, **more)
                yield self._event("response.content_part.done", **part, part=_part(block))

    def _call(self, block: Block) -> GrowingCall:
        if block.index not in self._calls:
            self._calls[block.index] = GrowingCall(block, self._kit.find(block.name))
        return self._calls[block.index]

    def _id(self, block: Block) -> str:
        prefix = self._call(block).prefix if block.kind == "call" else _PREFIXES[block.kind]
        return f"{prefix}_{self._unique}{block.index}"

    def _status_of(self, block: Block) -> str:
        is_last = block.index == len(self._blocks.all) - 1
        return "incomplete" if is_last and self._status == "incomplete" else "completed"

    def _item(self, block: Block, status: str, *, is_empty: bool = False) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._id(block), "status": status}
        if block.kind == "call":
            return item | self._call(block).item(is_empty=is_empty)
        content = [] if is_empty else [_part(block)]
        if block.kind == "reasoning":
            sealed = self._request.wants_sealed_reasoning and not is_empty
            more = {"encrypted_content": sealed_reasoning(block.text)} if sealed else {}
            return item | {"type": "reasoning", "summary": [], "content": content} | more
        return item | {"type": "message", "role": "assistant", "content": content}

    def _items(self) -> Iterable[dict[str, Any]]:
        return [self._item(block, self._status_of(block)) for block in self._blocks.all]

    def _response(self, status: str, error: dict[str, Any] | None = None) -> dict[str, Any]:
        asked = self._request.model_dump(by_alias=True)
        text, reasoning = asked["text"] or {}, asked["reasoning"] or {}
        return {
            "id": f"resp_{self._unique}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked["instructions"],
            "max_output_tokens": asked["max_output_tokens"],
            "metadata": asked["metadata"] or {},
            "model": asked["model"],
            "output": self._items() if status != "in_progress" else [],
            "parallel_tool_calls": asked["parallel_tool_calls"] is not False,
            "previous_response_id": asked["previous_response_id"],
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "store": self.is_kept,
            "temperature": 1.0 if asked["temperature"] is None else asked["temperature"],
            "text": {"format": text.get("format") or {"type": "text"}},
            "tool_choice": asked["tool_choice"] or "auto",
            "tools": asked["tools"] or [],
            "top_p": 1.0 if asked["top_p"] is None else asked["top_p"],
            "truncation": "disabled",
            "usage": None if self._completion is None else _usage(self._completion, self._blocks.num_reasoning),
            "user": asked["user"],
            **noted_warnings(),
        }

    def _event(self, name: str, **fields: Any) -> bytes:
        data = dumped({"type": name, "sequence_number": self._number} | fields)
        self._number += 1
        return f"event: {name}\ndata: {data}\n\n".encode()


def _part(block: Block) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}


def _usage(completion: Completion, num_reasoning: int) -> dict[str, Any]:
    asked, answered = completion.prompt_tokens, len(completion.token_ids)
    return {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": completion.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answered,
        "output_tokens_details": {"reasoning_tokens": num_reasoning},
        "total_tokens": asked + answered,
    }
