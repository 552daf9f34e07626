"""A call of a tool in a response of /v1/responses as it grows: its item, and the events that tell of it."""

from collections.abc import Iterator
from typing import Any

from mlxr.server.blocks import Block, arguments_of
from mlxr.server.openai.client_tool import ITEMS, ClientTool
from mlxr.server.openai.free_text import FreeText

Event = tuple[str, dict[str, Any]]
"""The last part of an event's name, and what it says beside its place."""


class GrowingCall:
    """One call.

    Attributes:
        prefix: how its item's id begins.
    """

    def __init__(self, block: Block, tool: ClientTool) -> None:
        """Starts before the arguments.

        Args:
            block: of the answer; it is read, not changed.
            tool: what is called.
        """
        self._block, self._tool, self._text = block, tool, FreeText()
        self.prefix = {"function": "fc", "custom": "ctc"}.get(tool.kind) or ITEMS[tool.kind][0]

    def item(self, *, is_empty: bool = False) -> dict[str, Any]:
        """The fields of the item.

        Args:
            is_empty: whether the call has only begun.
        """
        tool, written = self._tool, "" if is_empty else self._block.text
        told: dict[str, Any] = {"type": f"{tool.kind}_call", "call_id": self._block.call_id}
        match tool.kind:
            case "function":
                told |= {"name": tool.name, "arguments": written}
            case "custom":
                told |= {"type": "custom_tool_call", "name": tool.name, "input": "" if is_empty else self._text.text}
            case _:
                told |= ITEMS[tool.kind][1]({} if is_empty else arguments_of(self._block))
        return told | ({"namespace": tool.namespace} if tool.namespace else {})

    def grow(self, text: str) -> Iterator[Event]:
        """The events of further characters of the arguments."""
        if self._tool.kind == "function":
            yield "function_call_arguments.delta", {"delta": text}
        elif self._tool.kind == "custom" and (delta := self._text.push(text)):
            yield "custom_tool_call_input.delta", {"delta": delta}

    def end(self) -> Iterator[Event]:
        """The events of the end."""
        if self._tool.kind == "function":
            yield "function_call_arguments.done", {"arguments": self._block.text}
        elif self._tool.kind == "custom":
            if delta := self._text.finish():
                yield "custom_tool_call_input.delta", {"delta": delta}
            yield "custom_tool_call_input.done", {"input": self._text.text}
