"""One response of /v1/responses as it grows: the events that tell of it, and what it has become."""

import time
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

from mlxr.runtime.engine.completion import Completion
from mlxr.server.blocks import Block, Blocks, Change
from mlxr.server.chat.answer import Piece
from mlxr.server.errors import ApiError
from mlxr.server.openai.json_text import dumped
from mlxr.server.openai.responses_request import ResponsesRequest
from mlxr.server.request_record import noted_warnings

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
_EVENTS = {"reasoning": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}
_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class GrowingResponse:
    """A response, and its events in the order in which OpenAI's client reads them.

    Attributes:
        has_begun: whether its first events have been written.
    """

    def __init__(self, request: ResponsesRequest) -> None:
        """Starts before the answer."""
        self._request = request
        self._unique = uuid4().hex
        self._created, self._number = int(time.time()), 0
        self._blocks = Blocks()
        self._completion: Completion | None = None
        self.has_begun = False

    def begin(self) -> Iterator[bytes]:
        """The first events."""
        self.has_begun = True
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._response("in_progress"))

    def add(self, piece: Piece) -> Iterator[bytes]:
        """The events of a token; with the last one, those of the end."""
        changes = list(self._blocks.add(piece.deltas))
        if piece.event.finish_reason is not None:
            self._completion = piece.event.completion
            changes += self._blocks.end()
        for change in changes:
            yield from self._changed(change)
        if piece.event.finish_reason is not None:
            yield self._event(f"response.{self._status}", response=self.whole())

    def failed(self, error: ApiError) -> bytes:
        """The event of an error that ends the stream."""
        if not self.has_begun:
            return self._event("error", code=error.code, message=error.message, param=error.param)
        told = {"code": _CODES.get(error.status, "server_error"), "message": error.message}
        return self._event("response.failed", response=self._response("failed", told))

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
        part = {"item_id": self._id(block), **place, "content_index": 0}
        text_place = place | {"item_id": part["item_id"]} if block.kind == "call" else part
        more: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
        name = f"response.{_EVENTS[block.kind]}"
        match change.kind:
            case "begin":
                empty = Block(block.index, block.kind, block.call_id, block.name)
                item = self._item(empty, "in_progress") | ({} if block.kind == "call" else {"content": []})
                yield self._event("response.output_item.added", **place, item=item)
                if block.kind != "call":
                    yield self._event("response.content_part.added", **part, part=_part(empty))
            case "grow":
                yield self._event(f"{name}.delta", **text_place, delta=change.text, **more)
            case "end":
                key = "arguments" if block.kind == "call" else "text"
                yield self._event(f"{name}.done", **text_place, **{key: block.text}, **more)
                if block.kind != "call":
                    yield self._event("response.content_part.done", **part, part=_part(block))
                yield self._event("response.output_item.done", **place, item=self._item(block, self._status_of(block)))

    def _id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self._unique}{block.index}"

    def _status_of(self, block: Block) -> str:
        is_last = block.index == len(self._blocks.all) - 1
        return "incomplete" if is_last and self._status == "incomplete" else "completed"

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._id(block), "status": status}
        if block.kind == "call":
            call = {"call_id": block.call_id, "name": block.name, "arguments": block.text}
            return item | {"type": "function_call"} | call
        if block.kind == "reasoning":
            return item | {"type": "reasoning", "summary": [], "content": [_part(block)]}
        return item | {"type": "message", "role": "assistant", "content": [_part(block)]}

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
            "previous_response_id": None,
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "store": False,
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
