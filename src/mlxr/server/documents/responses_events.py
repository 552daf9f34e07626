"""The events of streams of /v1/responses. Those of an item name its place, and most of them its id."""

from typing import Any

from mlxr.server.documents.answers import LooseText
from mlxr.server.documents.named_events import NamedEvent
from mlxr.server.documents.responses_answers import Item, Part, Response


class NumberedEvent(NamedEvent):
    """An event."""

    sequence_number: int


class ResponseEvent(NumberedEvent):
    """The response begins or ends."""

    response: Response


class ItemEvent(NumberedEvent):
    """An item begins or ends."""

    output_index: int
    item: Item


class _OfText(NumberedEvent):
    item_id: str
    output_index: int
    content_index: int


class PartEvent(_OfText):
    """A part of an item begins or ends."""

    part: Part


class TextDelta(_OfText):
    """A text grows; that of an answer has a field for log probabilities, which is empty."""

    delta: str
    logprobs: list[Any] | None = None


class TextDone(_OfText):
    """A text ends."""

    text: str
    logprobs: list[Any] | None = None


class CallDelta(NumberedEvent):
    """What a tool is called with grows."""

    output_index: int
    item_id: str
    delta: LooseText


class CallDone(NumberedEvent):
    """What a tool is called with is whole: the arguments of a function, the input of a custom tool."""

    output_index: int
    item_id: str
    arguments: str | None = None
    input: LooseText | None = None
