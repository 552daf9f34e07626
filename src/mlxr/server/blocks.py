"""An answer as blocks, one after the other: reasoning, text, tool calls. Some APIs show answers so."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_core import from_json

from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart

BlockKind = Literal["reasoning", "text", "call"]


@dataclass
class Block:
    """A block.

    Attributes:
        index: counts the blocks of an answer, from 0.
        kind: what it is.
        call_id: names a call.
        name: of the tool that is called.
        pieces: of its text; of a call's arguments.
    """

    index: int
    kind: BlockKind
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its text, or a call's arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to a block: it begins, grows by some text, or ends."""

    kind: Literal["begin", "grow", "end"]
    block: Block
    text: str = ""


class Blocks:
    """The blocks of one answer as it grows; the last one is open until the next begins, or `end` is called.

    Attributes:
        all: the blocks so far.
        num_reasoning: tokens of reasoning.
    """

    def __init__(self) -> None:
        """Starts before the answer."""
        self.all: list[Block] = []
        self.num_reasoning = 0
        self._open: Block | None = None

    def add(self, deltas: Iterable[Delta]) -> Iterator[Change]:
        """Adds the deltas of one token."""
        is_reasoning = False
        for delta in deltas:
            match delta:
                case ReasoningDelta(text):
                    is_reasoning = True
                    yield from self._grow("reasoning", text)
                case ContentDelta(text):
                    yield from self._grow("text", text)
                case ToolStart(_, call_id, name):
                    yield from self._begin(Block(len(self.all), "call", call_id, name))
                case ToolArguments(_, text):
                    yield from self._grow("call", text)
        self.num_reasoning += is_reasoning

    def end(self) -> Iterator[Change]:
        """Ends the last block."""
        if self._open is not None:
            yield Change("end", self._open)
            self._open = None

    def _grow(self, kind: BlockKind, text: str) -> Iterator[Change]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(Block(len(self.all), kind))
        assert self._open is not None, "it has just begun"
        self._open.pieces.append(text)
        yield Change("grow", self._open, text)

    def _begin(self, block: Block) -> Iterator[Change]:
        yield from self.end()
        self._open = block
        self.all.append(block)
        yield Change("begin", block)


def arguments_of(block: Block) -> dict[str, Any]:
    """A call's arguments as an object: of JSON that was cut short, what is there.

    What the model wrote instead of an object is in `INVALID_JSON`, so that it is not lost.
    """
    text = block.text
    if not text.strip():
        return {}
    try:
        arguments = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"INVALID_JSON": text}
