"""A call of a tool in a response of /v1/responses as it grows: its item, and the events that tell of it."""

from typing import Any

from mlxr.server.blocks import Block, arguments_of
from mlxr.server.documents.responses_answers import CallItem, CustomCall, FunctionCall, ItemStatus, OutputCall
from mlxr.server.openai.client_tool import ITEMS, ClientTool
from mlxr.server.openai.free_text import FreeText

_TOLD = {"function": "function_call_arguments", "custom": "custom_tool_call_input"}


class GrowingCall:
    """One call.

    Attributes:
        prefix: how its item's id begins.
        told: what its events are named after; empty: it has none, and only its item tells of it.
    """

    def __init__(self, block: Block, tool: ClientTool) -> None:
        """Starts before the arguments.

        Args:
            block: of the answer; it is read, not changed.
            tool: what is called.
        """
        self._block, self._tool, self._text = block, tool, FreeText()
        self.told = _TOLD.get(tool.kind, "")
        self.prefix = {"function": "fc", "custom": "ctc"}.get(tool.kind) or ITEMS[tool.kind][0]

    def item(self, item_id: str, status: ItemStatus, *, is_empty: bool = False) -> CallItem:
        """The item.

        Args:
            item_id: its name.
            status: how far it is.
            is_empty: whether the call has only begun.
        """
        tool, written = self._tool, "" if is_empty else self._block.text
        own_kind = "custom_tool_call" if tool.kind == "custom" else f"{tool.kind}_call"
        given = OutputCall(id=item_id, status=status, type=own_kind, call_id=self._block.call_id)
        call: FunctionCall | CustomCall
        match tool.kind:
            case "function":
                call = FunctionCall(**given.fields(), name=tool.name, arguments=written)
            case "custom":
                call = CustomCall(**given.fields(), name=tool.name, input="" if is_empty else self._text.text)
            case _:
                return ITEMS[tool.kind][1](given, {} if is_empty else arguments_of(self._block))
        if tool.namespace:
            call.namespace = tool.namespace
        return call

    def grow(self, text: str) -> str | None:
        """What clients are told of further characters of the arguments; None: nothing."""
        if self._tool.kind == "function":
            return text
        return (self._text.push(text) or None) if self._tool.kind == "custom" else None

    def rest(self) -> str | None:
        """What they are told at the end that they were not told before; None: nothing."""
        return (self._text.finish() or None) if self._tool.kind == "custom" else None

    def whole(self) -> dict[str, Any]:
        """What the event of the end has beside its place."""
        return {"arguments": self._block.text} if self._tool.kind == "function" else {"input": self._text.text}
